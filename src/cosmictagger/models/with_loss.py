"""A network that computes its own loss, as devices want it whose program is the whole step."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class LossInForward(nn.Module):
    """A network and its loss as one module.

    Args:
        network: from ``[B, 3, H, W]`` to three of ``[B, 3, H, W]``.
        loss: ``(logits, label) -> scalar``.
        mark: applied to the loss before it is returned; where a front-end wants to be told which
            value is the loss, its function for that.
    """

    def __init__(
        self, network: nn.Module, loss: nn.Module, mark: Callable[[Tensor], Tensor] | None = None
    ):
        super().__init__()
        self.network = network
        self.loss = loss
        self._mark = mark

    def forward(self, image: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        """The scores of the three planes, and the loss.

        Args:
            image: ``[B, 3, H, W]``.
            label: int64 ``[B, 3, H, W]``.
        """
        logits = self.network(image)
        loss = self.loss(logits, label)
        return (*logits, loss if self._mark is None else self._mark(loss))

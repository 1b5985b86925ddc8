"""The loss: cross entropy per pixel, weighted so that rare classes count, summed over planes.

For each plane ``sum(w * CE) / sum(w)`` over all pixels of the batch; the schemes differ in ``w``.
No Python decision depends on a value, so the loss can be captured into a program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from cosmictagger.config.mode import LossBalanceScheme
from cosmictagger.config.network import member

LIGHT = (1.0, 1.5, 10.0)
"""What a background, a cosmic and a neutrino pixel count with scheme ``light``."""

EVEN = 0.3333
"""What all pixels of a class count together with scheme ``even``."""

Weights = Callable[[Tensor, Tensor], Tensor]


class Loss(nn.Module):
    """The loss of a scheme.

    * ``none``: every pixel counts the same.
    * ``light``: fixed weights by class, ``LIGHT``.
    * ``even``: each class counts the same in total, ``EVEN / (count + 1)`` per pixel; counted over
      the plane's batch. A class without pixels has no part in it.
    * ``focal``: ``(1 - p)**2`` with p the probability of the true class (Lin et al.,
      arXiv:1708.02002), but divided by the sum of weights: a weighted mean.

    Args:
        scheme: a ``LossBalanceScheme``, its name or its number.
    """

    def __init__(self, scheme: LossBalanceScheme | str | int):
        super().__init__()
        self.scheme = member(LossBalanceScheme, scheme, "mode.optimizer.loss_balance_scheme")
        self._weights = _SCHEMES[self.scheme]

    def forward(self, logits: Sequence[Tensor], label: Tensor) -> Tensor:
        """The loss of a batch; a scalar, float32 whatever the logits are.

        Args:
            logits: for each plane ``[B, 3, H, W]``.
            label: int64 ``[B, 3, H, W]``, the class of each pixel, one channel for each plane.
        """
        losses = [self._of_plane(scores, label[:, p]) for p, scores in enumerate(logits)]
        return torch.stack(losses).sum()

    def _of_plane(self, scores: Tensor, label: Tensor) -> Tensor:
        entropy = functional.cross_entropy(scores.float(), label, reduction="none")
        if self.scheme is LossBalanceScheme.none:
            return entropy.mean()
        weights = self._weights(entropy.detach(), label)
        # Where every pixel is certainly right, focal weights are all zero: no loss, not 0 / 0.
        total = weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)
        return (weights * entropy).sum() / total

    def extra_repr(self) -> str:
        """Return the scheme, for the printed network."""
        return self.scheme.name


def _equal(entropy: Tensor, label: Tensor) -> Tensor:
    return torch.ones_like(entropy)


def _light(entropy: Tensor, label: Tensor) -> Tensor:
    return _by_class(label, [entropy.new_full((), weight) for weight in LIGHT])


def _even(entropy: Tensor, label: Tensor) -> Tensor:
    # Adding floats is several times faster than counting, and as exact up to 2**24 rare pixels.
    cosmic, neutrino = ((label == kind).to(torch.float32).sum() for kind in (1, 2))
    background = label.numel() - cosmic - neutrino
    return _by_class(label, [EVEN / (count + 1) for count in (background, cosmic, neutrino)])


def _focal(entropy: Tensor, label: Tensor) -> Tensor:
    # exp(-CE) is the softmax probability of the true class; expm1 keeps small differences to one.
    return torch.expm1(-entropy).square()


def _by_class(label: Tensor, weights: Sequence[Tensor]) -> Tensor:
    background, cosmic, neutrino = weights
    return torch.where(label == 0, background, torch.where(label == 1, cosmic, neutrino))


_SCHEMES: Mapping[LossBalanceScheme, Weights] = {
    LossBalanceScheme.none: _equal,
    LossBalanceScheme.light: _light,
    LossBalanceScheme.even: _even,
    LossBalanceScheme.focal: _focal,
}

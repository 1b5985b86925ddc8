"""What forward is being run for, and the loss it may name."""

import contextlib
import contextvars
from collections.abc import Iterator

import torch

from abele import losses
from poptorch._error import error

# What forward is being captured for: None outside, then whether it is training.
_capturing: contextvars.ContextVar[bool | None] = contextvars.ContextVar("capturing", default=None)
_REDUCTIONS = ("sum", "mean", "none")


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Marks a value as the loss that training minimises.

    Args:
        x: any shape; its gradient starts the backward pass.
        reduction: ``"sum"`` or ``"mean"`` over all elements, or ``"none"`` (gradient of ones).

    Returns:
        The reduced value; works on the host too, with gradients.

    Raises:
        AssertionError: unknown reduction.
        poptorch.Error: training a loss that is not of a floating point type.
    """
    if reduction not in _REDUCTIONS:
        raise AssertionError(
            f"Unsupported reduction type {reduction!r} in identity_loss. Use one of {_REDUCTIONS}."
        )
    if _capturing.get() and not x.is_floating_point():
        raise error(
            f"The loss given to identity_loss is of type {x.dtype}, which has no gradient. "
            "Compute the loss in floating point: identity_loss(x.float(), ...)."
        )
    loss = x if reduction == "none" else getattr(x, reduction)()
    losses.mark_loss(loss)
    return loss


def isRunningOnIpu() -> bool:
    """Whether forward is being captured for the device; False on plain host runs."""
    return _capturing.get() is not None


def capturing() -> bool | None:
    """None outside a capture; inside, whether it is for training."""
    return _capturing.get()


@contextlib.contextmanager
def running_on_ipu(*, training: bool) -> Iterator[None]:
    """While open, ``isRunningOnIpu()`` is True."""
    token = _capturing.set(training)
    try:
        yield
    finally:
        _capturing.reset(token)

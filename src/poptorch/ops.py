"""Functions that programs call inside forward."""

import contextlib
import contextvars
from collections.abc import Iterator

import torch

from abele import losses

_running: contextvars.ContextVar[bool] = contextvars.ContextVar("running_on_ipu", default=False)
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
    """
    if reduction not in _REDUCTIONS:
        raise AssertionError(
            f"Unsupported reduction type {reduction!r} in identity_loss. Use one of {_REDUCTIONS}."
        )
    loss = x if reduction == "none" else getattr(x, reduction)()
    losses.mark_loss(loss)
    return loss


def isRunningOnIpu() -> bool:
    """Whether forward is being captured for the device; False on plain host runs."""
    return _running.get()


@contextlib.contextmanager
def running_on_ipu() -> Iterator[None]:
    """While open, ``isRunningOnIpu()`` is True."""
    token = _running.set(True)
    try:
        yield
    finally:
        _running.reset(token)

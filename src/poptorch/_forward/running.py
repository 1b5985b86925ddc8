"""The purpose of the present run of forward, and the loss that it marks."""

import contextlib
import contextvars
from collections.abc import Iterator

import torch

from abele.capture import losses
from abele.warn import user_line
from poptorch._error import error

# What forward is being captured for: None outside, then whether it is training.
_capturing: contextvars.ContextVar[bool | None] = contextvars.ContextVar("capturing", default=None)
# Whoever wants to know whether forward asks that.
_observer: contextvars.ContextVar["Asked | None"] = contextvars.ContextVar("observer", default=None)
_REDUCTIONS = ("sum", "mean", "none")


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Mark a value as the loss that training minimises.

    Args:
        x: any shape; its gradient starts the backward pass.
        reduction: ``"sum"`` or ``"mean"`` over all elements, or ``"none"`` (gradient of ones).

    Returns:
        The reduced value; works on the host too, with gradients.

    Raises:
        AssertionError: unknown reduction.
        poptorch.Error: it is no tensor, or training a loss that is not of a floating point type.
    """
    if reduction not in _REDUCTIONS:
        raise AssertionError(
            f"Unsupported reduction type {reduction!r} in identity_loss, at {user_line()}. Use one "
            f"of {_REDUCTIONS}."
        )
    if not isinstance(x, torch.Tensor):
        raise error(
            f"identity_loss takes a torch.Tensor, found {x!r} of type {type(x).__name__}, at "
            f"{user_line()}. A loss is computed from the model's parameters: pass the tensor "
            "itself, not its value."
        )
    if _capturing.get() and not x.is_floating_point():
        raise error(
            f"The loss given to identity_loss is of type {x.dtype}, which has no gradient, at "
            f"{user_line()}. Compute the loss in floating point: identity_loss(x.float(), ...)."
        )
    loss = x if reduction == "none" else getattr(x, reduction)()
    losses.mark_loss(loss)
    return loss


def isRunningOnIpu() -> bool:
    """Return whether forward is being captured for the device; False on plain host runs."""
    return capturing() is not None


def capturing() -> bool | None:
    """None outside a capture; inside, whether it is for training."""
    observer = _observer.get()
    if observer is not None:
        observer.any = True
    return _capturing.get()


def is_captured() -> bool:
    """Return whether forward is being captured, asked by this package itself."""
    return _capturing.get() is not None


class Asked:
    """Record whether forward queries its device inside the block.

    Attributes:
        any: it has.
    """

    any = False

    def __enter__(self) -> "Asked":
        self._token = _observer.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _observer.reset(self._token)


@contextlib.contextmanager
def running_on_ipu(*, training: bool) -> Iterator[None]:
    """While open, ``isRunningOnIpu()`` is True."""
    token = _capturing.set(training)
    try:
        yield
    finally:
        _capturing.reset(token)

"""``torch.amp.GradScaler`` in a trace: what it reads and skips becomes a selection of values."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

#: Settings of a scaler, whose values a trace has.
SETTINGS = frozenset({"_enabled", "_growth_factor", "_backoff_factor", "_growth_interval"})


def is_pending(scaler: Any) -> bool:
    """Return whether a scaler has unscaled gradients, or stepped, since its last update."""
    return bool(getattr(scaler, "_per_optimizer_states", None))  # a disabled one has none


def replacements(
    skipping: Callable[[torch.Tensor], contextlib.AbstractContextManager[None]],
) -> Sequence[tuple[Any, str, Callable[..., Any]]]:
    """Return owner, name and replacement of each function that a trace replaces.

    Args:
        skipping: returns a context in which an optimizer changes nothing where a 0-d bool tensor
            is true.
    """

    def step(original: Any, scaler: Any, optimizer: Any, state: Any, *args: Any, **kw: Any) -> Any:
        found: Any = sum(state["found_inf_per_device"].values())
        with skipping(found != 0):
            return optimizer.step(*args, **kw)

    def update(original: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
        states = getattr(scaler, "_per_optimizer_states", None)
        original(scaler, *args, **kwargs)
        if states is not None:  # in place of a new dictionary
            states.clear()
            scaler._per_optimizer_states = states

    return (
        (torch.amp.GradScaler, "_maybe_opt_step", step),
        (torch.amp.GradScaler, "update", update),
        (torch, "_amp_foreach_non_finite_check_and_unscale_", _unscale),
        (torch, "_amp_update_scale_", _update),
    )


def _unscale(
    original: Any, grads: Sequence[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor
) -> None:
    for grad in grads:
        found = grad.isfinite().logical_not().any().to(found_inf.dtype)
        found_inf.copy_(torch.maximum(found_inf, found))
        grad.mul_(inverse)


def _update(
    original: Any,
    scale: torch.Tensor,
    tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth: float,
    backoff: float,
    interval: int,
) -> torch.Tensor:
    found, count = found_inf != 0, tracker + 1
    is_due = count == interval
    smaller, larger = ((scale.double() * factor).float() for factor in (backoff, growth))
    larger = torch.where(is_due & larger.isfinite(), larger, scale)
    tracker.copy_(torch.where(found | is_due, torch.zeros_like(count), count))
    return scale.copy_(torch.where(found, smaller, larger))

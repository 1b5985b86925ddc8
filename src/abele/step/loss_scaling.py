"""Automatic loss scaling: the largest scale that float16 gradients can bear.

Every update period counts the elements of half gradients whose magnitude exceeds a share of the
largest half (infinite and NaN included). If their proportion exceeds a
threshold, the scale is halved for the next period, otherwise doubled. Scale and counts live on the
device: nothing waits for the host. An update whose gradients are not all finite is left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Iterable, Mapping

import torch

SATURATED, UPDATES = "saturated_gradients", "scaled_updates"
#: Counter slots of an automatic scale.
COUNTERS = (SATURATED, UPDATES)
_SMALLEST = 2.0**-24


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutomaticScaling:
    """Settings of an automatic loss scale.

    Attributes:
        bin_edge: share of the largest half above which an element counts as saturated.
        threshold: proportion of saturated elements above which the scale is halved.
        period: updates between two changes.
    """

    bin_edge: float = 0.125
    threshold: float = 1e-7
    period: int = 1

    def __post_init__(self):
        if not (0 < self.bin_edge <= 1 and 0 <= self.threshold <= 1 and self.period >= 1):
            raise ValueError(
                "Automatic loss scaling needs 0 < bin edge <= 1, 0 <= threshold <= 1 and a period "
                f"of at least 1 update, found {self}."
            )


def count_saturated(
    grads: Iterable[torch.Tensor], saturated: torch.Tensor, settings: AutomaticScaling
) -> None:
    """Add the number of saturated elements of float16 gradients to a counter."""
    edge = settings.bin_edge * torch.finfo(torch.float16).max
    halves = [grad for grad in grads if grad.dtype is torch.float16]
    if halves:
        # Negated, so that NaN counts too.
        counts = [(~(grad.abs() <= edge)).sum() for grad in halves]
        saturated.copy_(saturated + torch.stack(counts).sum())


def elements(grads: Iterable[torch.Tensor]) -> int:
    """Return the number of elements of one micro-batch's float16 gradients."""
    return sum(grad.numel() for grad in grads if grad.dtype is torch.float16)


def limit(loss: torch.Tensor) -> float:
    """Return the largest loss scale that is finite in the loss's dtype."""
    return 2.0**15 if loss.dtype is torch.float16 else 2.0**24


def follow(
    scale: torch.Tensor,
    counters: Mapping[str, torch.Tensor],
    settings: AutomaticScaling,
    elements_per_update: int,
    largest: float,
) -> None:
    """Halve or double the loss scale at the end of a period, in place.

    Args:
        scale: 0-d float64.
        counters: those named ``COUNTERS``, written in place.
        settings: threshold and period.
        elements_per_update: gradient elements that were looked at for one update.
        largest: upper limit of the scale.
    """
    updates = counters[UPDATES] + 1
    ends = updates >= settings.period
    saturated = counters[SATURATED]
    too_many = saturated > settings.threshold * elements_per_update * settings.period
    changed = (scale * torch.where(too_many, 0.5, 2.0)).clamp(_SMALLEST, largest)
    new_saturated = torch.where(ends, torch.zeros_like(saturated), saturated)
    scale.copy_(torch.where(ends, changed, scale))
    counters[SATURATED].copy_(new_saturated)
    counters[UPDATES].copy_(torch.where(ends, torch.zeros_like(updates), updates))


@contextlib.contextmanager
def only_if_finite(grads: Iterable[torch.Tensor], state: Iterable[torch.Tensor]) -> Generator[None]:
    """Restore ``state`` at the end of a ``with`` block unless all gradients are finite."""
    # Not isfinite: compiled code may see the value before it is rounded to an infinite half.
    within = [(grad.abs() <= torch.finfo(grad.dtype).max).all() for grad in grads]
    sound = torch.stack(within).all()
    copies = [(value, value.clone()) for value in state]
    yield
    for value, copy in copies:
        value.copy_(torch.where(sound, value, copy))

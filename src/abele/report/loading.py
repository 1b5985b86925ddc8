"""Bottleneck of a loop over a loader: waiting for batches, or computation."""

from __future__ import annotations

import dataclasses

_LEAST_BATCHES, _LEAST_S = 100, 1.0  # a shorter loop says nothing of a rate


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclasses.dataclass(slots=True)
class Waits:
    """Time that one thread has waited for its batches.

    Attributes:
        ns: nanoseconds so far.
    """

    ns: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
    """The times of a loop over a loader, from one batch to the next.

    Attributes:
        batches: number of batches.
        steps: of the device, per batch.
        seconds: from batch to batch, of all together.
        waiting: seconds of that until a batch that was asked for was there.
        why_single: why items were fetched one by one; empty if they were not.
    """

    batches: int
    steps: int
    seconds: float
    waiting: float
    why_single: str = ""

    @property
    def bound(self) -> str:
        """``input-bound`` if waiting takes longer than the work, else ``compute-bound``."""
        return "input-bound" if self.waiting > 0.5 * self.seconds else "compute-bound"

    def sentence(self) -> str | None:
        """Return the bottleneck and the rate with free input; None after too short a loop."""
        working = self.seconds - self.waiting
        if self.batches < _LEAST_BATCHES or self.seconds < _LEAST_S or working <= 0:
            return None
        share, steps = self.waiting / self.seconds, self.batches * self.steps
        text = (
            f"{self.bound}: {_rate(steps / self.seconds)} steps/s, of which waiting for batches "
            f"took {share:.0%}; with free input {_rate(steps / working)} steps/s"
        )
        if self.bound == "input-bound" and self.why_single:
            text += f" (items were fetched one by one: {self.why_single})"
        return text

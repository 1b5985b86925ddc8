"""Verdict on an estimate and a limit."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from abele.fit.estimate import Estimate, Interval, Part
from abele.fit.limits import Limit, bytes_text, shown


class Verdict(enum.StrEnum):
    """The answer in a word."""

    FITS = "fits"
    UNCERTAIN = "uncertain"
    DOES_NOT_FIT = "does not fit"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer and what it rests on.

    Attributes:
        verdict: the answer.
        limit: what it was compared with.
        size: bytes at the peak, with ``beside``.
        beside: what takes memory beside the programs: the process itself.
        estimate: of the programs.
    """

    verdict: Verdict
    limit: Limit
    size: Interval
    beside: tuple[Part, ...]
    estimate: Estimate

    def sentence(self) -> str:
        """Return the verdict in a sentence."""
        limit = shown(self.limit.name, self.limit.size)
        needs = f"{bytes_text(self.size.low)} to {bytes_text(self.size.high)}"
        if bytes_text(self.size.low) == bytes_text(self.size.high):
            needs = bytes_text(self.size.high)
        if self.verdict is Verdict.FITS:
            left = bytes_text(self.limit.size - self.size.high)
            return f"It fits into {limit}: it needs {needs}, so that {left} are left."
        if self.verdict is Verdict.DOES_NOT_FIT:
            missing = bytes_text(self.size.low - self.limit.size)
            return f"It does not fit into {limit}: it needs {needs}, {missing} more than there are."
        return f"It is uncertain whether it fits into {limit}: it needs {needs}."

    def data(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {
            "version": 1,
            "verdict": self.verdict.value,
            "sentence": self.sentence(),
            "limit": dataclasses.asdict(self.limit),
            "bytes": dataclasses.asdict(self.size),
            "beside": [dataclasses.asdict(part) for part in self.beside],
            "estimate": self.estimate.data(),
        }


def decide(estimate: Estimate, limit: Limit, beside: tuple[Part, ...] = ()) -> Answer:
    """Compare an estimate with a limit.

    Args:
        estimate: of the programs.
        limit: how much memory there is.
        beside: what takes memory of ``limit`` beside them.
    """
    size = Interval.sum((estimate.size, *(part.size for part in beside)))
    verdict = Verdict.UNCERTAIN
    if size.high <= limit.size:
        verdict = Verdict.FITS
    elif size.low > limit.size:
        verdict = Verdict.DOES_NOT_FIT
    return Answer(verdict=verdict, limit=limit, size=size, beside=beside, estimate=estimate)

"""The ladder of changes that an answer offers, as values."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from abele.fit import Interval, Verdict


class Outcome(Protocol):
    """Whether a program fits, and the bytes that decide it."""

    @property
    def verdict(self) -> Verdict:
        """The answer in a word."""
        ...

    @property
    def size(self) -> Interval:
        """Bytes at the peak."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rung:
    """One change, on top of those before it.

    Attributes:
        name: in words.
        lines: of Python, to add to the program.
        warning: what else it changes, or empty.
        saved: bytes that are expected to be saved at the peak.
        ratios: work of a step with it over that without, by name; empty if nothing is known.
        answer: with this change and those before it.
    """

    name: str
    lines: tuple[str, ...]
    warning: str
    saved: float
    ratios: Mapping[str, float]
    answer: Outcome

    def data(self) -> dict[str, Any]:
        """The same as plain values."""
        facts = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        answer = self.answer
        return {
            **facts,
            "lines": list(self.lines),
            "ratios": dict(self.ratios),
            "answer": {"verdict": answer.verdict.value, "bytes": dataclasses.asdict(answer.size)},
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stays:
    """What no change takes away.

    Attributes:
        process: bytes of this process without the model, at most.
        state: bytes of weights and the optimizer's state, in half if that is offered.
    """

    process: float
    state: float

    @property
    def size(self) -> float:
        """Bytes of both."""
        return self.process + self.state


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ladder:
    """Changes that make a model fit, or need less where none suffices.

    Attributes:
        rungs: the changes; all of them together.
        left_out: changes that are not offered, and why.
        stays: what is above the limit whatever is changed, so that nothing more was tried; None
            if all was.
    """

    rungs: tuple[Rung, ...]
    left_out: tuple[str, ...]
    stays: Stays | None = None

    @property
    def fits(self) -> bool:
        """Whether the model fits with all of them."""
        return bool(self.rungs) and self.rungs[-1].answer.verdict is Verdict.FITS

    def data(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "fits": self.fits,
            "rungs": [rung.data() for rung in self.rungs],
            "left_out": list(self.left_out),
            "stays": None if self.stays is None else dataclasses.asdict(self.stays),
        }

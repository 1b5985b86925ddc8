"""The cheapest changes that make a model fit, one after the other, each captured and estimated."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

from abele import fit
from abele.errors import AbeleError
from abele.fit import Answer, Estimate, Verdict
from poptorch._fit import changes
from poptorch._fit.changes import Change, NotOffered, Ways
from poptorch._fit.trial import Trial

#: In the order of what they cost: nothing, calls of operators, a second forward, digits.
_WAYS: tuple[Ways, ...] = (
    changes.waiting,
    changes.smaller_micro_batches,
    changes.recomputed,
    changes.halved,
)
_LEAST = 0.01  # share of what the programs need that a change has to save


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rung:
    """One change, on top of those before it.

    Attributes:
        name: in words.
        lines: of Python, to add to the program.
        warning: what else it changes, or empty.
        saved: bytes that are expected to be saved at the peak.
        slowdown: times as long as a step takes without it; None if that is not estimated.
        answer: with this change and those before it.
    """

    name: str
    lines: tuple[str, ...]
    warning: str
    saved: float
    slowdown: float | None
    answer: Answer

    def data(self) -> dict[str, Any]:
        """The same as plain values."""
        facts = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        answer = self.answer
        return {
            **facts,
            "lines": list(self.lines),
            "answer": {"verdict": answer.verdict.value, "bytes": dataclasses.asdict(answer.size)},
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ladder:
    """Changes that make a model fit, or need less where none suffices.

    Attributes:
        rungs: the changes; all of them together.
        left_out: changes that are not offered, and why.
    """

    rungs: tuple[Rung, ...]
    left_out: tuple[str, ...]

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
        }


def ladder(trial: Trial, answer: Answer, estimated: Callable[[Trial], Estimate]) -> Ladder:
    """Find the changes.

    Args:
        trial: the model, which does not fit for sure.
        answer: of it.
        estimated: the memory of a changed model.
    """
    rungs: list[Rung] = []
    left_out: list[str] = list(changes.NOT_OFFERED)
    opened: list[Change] = []
    for ways in _WAYS:
        if answer.verdict is Verdict.FITS:
            break
        best = None
        try:
            for change in ways(trial):
                rung = _rung(change, opened, answer, estimated)
                if rung.saved > _LEAST * answer.estimate.size.expected:
                    best = change, rung
                if rung.answer.verdict is Verdict.FITS:
                    break
        except NotOffered as reason:
            left_out.append(str(reason))
        # What capturing raises of a forward that was not made for the change.
        except (AbeleError, RuntimeError, TypeError, ValueError) as error:
            left_out.append(f"{ways.__name__.replace('_', ' ')}: {_first_line(error)}")
        if best is not None:
            change, rung = best
            rungs.append(rung)
            opened.append(change)
            trial, answer = change.trial, rung.answer
    return Ladder(rungs=tuple(rungs), left_out=tuple(left_out))


def _rung(
    change: Change,
    opened: list[Change],
    before: Answer,
    estimated: Callable[[Trial], Estimate],
) -> Rung:
    with contextlib.ExitStack() as stack:
        for each in (*opened, change):
            stack.enter_context(each.around(change.trial.module))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # the user has had those of the model as it is
        after = estimated(change.trial)
    answer = fit.decide(after, before.limit, before.beside)
    return Rung(
        name=change.name,
        lines=change.lines,
        warning=change.warning,
        saved=before.size.expected - answer.size.expected,
        slowdown=_slowdown(before.estimate, after) if change.timed else None,
        answer=answer,
    )


def _slowdown(before: Estimate, after: Estimate) -> float | None:
    if before.seconds is None or after.seconds is None or not before.seconds.expected:
        return None
    return after.seconds.expected / before.seconds.expected


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__

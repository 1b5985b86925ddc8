"""The cheapest changes that make a model fit, one after the other, each captured and estimated."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

from abele import fit
from abele.errors import AbeleError
from abele.fit import Answer, Estimate, Verdict
from abele.fit.answers import Say, silent
from abele.fit.run import STATE
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
#: Shares that ways leave of the model's state, where they leave less than all.
_REMAINS: dict[Ways, float] = {changes.halved: changes.HALF}
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


class Search:
    """Finds the changes, once, when somebody asks.

    Args:
        trial: the model, which does not fit for sure.
        answer: of it.
        estimated: the memory of a changed model; ``timed`` for how long a call takes, too.
    """

    def __init__(self, trial: Trial, answer: Answer, estimated: Callable[..., Estimate]):
        self._trial, self._answer, self._estimated = trial, answer, estimated
        self._ladder: Ladder | None = None

    def ladder(self, say: Say = silent) -> Ladder:
        """The changes.

        Args:
            say: told which change is tried.
        """
        if self._ladder is None:
            self._ladder = _climbed(self._trial, self._answer, self._estimated, say)
        return self._ladder


def _climbed(trial: Trial, answer: Answer, estimated: Callable[..., Estimate], say: Say) -> Ladder:
    rungs: list[Rung] = []
    left_out: list[str] = list(changes.NOT_OFFERED)
    opened: list[Change] = []
    for number, ways in enumerate(_WAYS):
        if answer.verdict is Verdict.FITS:
            break
        stays = _stays(answer, min(_REMAINS.get(each, 1.0) for each in _WAYS[number:]))
        if stays.size > answer.limit.size:
            return Ladder(rungs=tuple(rungs), left_out=tuple(left_out), stays=stays)
        try:
            best = _best(list(ways(trial)), opened, answer, estimated, say)
        except NotOffered as reason:
            left_out.append(str(reason))
        # What capturing raises of a forward that was not made for the change.
        except (AbeleError, RuntimeError, TypeError, ValueError) as error:
            left_out.append(f"{ways.__name__.replace('_', ' ')}: {_first_line(error)}")
        else:
            if best is not None:
                change, rung = best
                rungs.append(rung)
                opened.append(change)
                trial, answer = change.trial, rung.answer
    return Ladder(rungs=tuple(rungs), left_out=tuple(left_out))


def _best(
    several: list[Change],
    opened: list[Change],
    answer: Answer,
    estimated: Callable[..., Estimate],
    say: Say,
) -> tuple[Change, Rung] | None:
    """The least of several changes that suffices, or else the last that saves something.

    Raises:
        NotOffered: what was tried saves nothing.
    """
    best, tried = None, ""
    for change in _worth_trying(several, answer):
        if change.estimated is None:
            say(f"trying {change.name}")
            tried = change.name
        rung = _rung(change, opened, answer, estimated)
        if rung.saved > _LEAST * answer.estimate.size.expected:
            best = change, rung
        if rung.answer.verdict is Verdict.FITS:
            break
    if best is None and tried:
        raise NotOffered(f"{tried}: saves less than {100 * _LEAST:.0f} %")
    return best


def _stays(answer: Answer, share: float) -> Stays:
    """What is left where everything is changed; ``share`` of the model's state."""
    state = [part.size.high for part in answer.estimate.peak.parts if part.role in STATE]
    return Stays(process=sum(part.size.high for part in answer.beside), state=share * sum(state))


def _worth_trying(several: list[Change], answer: Answer) -> list[Change]:
    """The changes that may suffice, or the one that saves most if none may."""
    return [each for each in several if _may_fit(each, answer)] or several[-1:]


def _may_fit(change: Change, answer: Answer) -> bool:
    if change.estimated is not None:
        return True
    always, rest = change.least
    beside = sum(part.size.high for part in answer.beside)
    least = max(
        sum((always if part.always else rest) * part.size.high for part in moment.parts)
        for moment in answer.estimate.moments
        if not moment.first_steps
    )
    return beside + least <= answer.limit.size


def _rung(
    change: Change,
    opened: list[Change],
    before: Answer,
    estimated: Callable[..., Estimate],
) -> Rung:
    with contextlib.ExitStack() as stack:
        for each in (*opened, change):
            stack.enter_context(each.around(change.trial.module))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # the user has had those of the model as it is
        if change.estimated is not None:
            after = change.estimated(before.estimate)
        else:
            after = estimated(change.trial, timed=change.timed)
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

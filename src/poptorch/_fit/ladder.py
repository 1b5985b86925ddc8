"""The cheapest changes that make a model fit, one after the other, each captured and estimated."""

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from abele.errors import AbeleError
from abele.fit import Verdict
from abele.fit.answers import Say, silent
from poptorch._fit.changes import Change, NotOffered, Ways
from poptorch._fit.rungs import Ladder, Outcome, Rung, Stays
from poptorch._fit.trial import Trial

#: Shares of what the programs need that a change has to save: in any case, and where it does not
#: suffice and a step has so many times the work.
_LEAST, _LITTLE, _MUCH = 0.01, 0.1, 2.0

#: What capturing raises of a forward that was not made for a change.
FAILURES = (AbeleError, RuntimeError, TypeError, ValueError)

_O = TypeVar("_O", bound=Outcome)


class Judge(Protocol[_O]):
    """What a memory has to do with changes.

    Attributes:
        ways: to change a program, the cheapest first.
        left_out: changes that are never offered, and why.
    """

    ways: Sequence[Ways]
    left_out: Sequence[str]

    def stays(self, now: _O, ways: Sequence[Ways]) -> Stays | None:
        """What is above the limit whatever these ways do; None if they may suffice."""
        ...

    def needed(self, now: _O) -> float:
        """Bytes that changes can save a share of."""
        ...

    def may_fit(self, change: Change, now: _O) -> bool:
        """Whether a change may suffice, said before anything is captured."""
        ...

    def after(self, change: Change, now: _O) -> _O:
        """How it is with a change, for whose capture everything is prepared."""
        ...

    def lines(self, change: Change, after: _O) -> tuple[str, ...]:
        """What the program needs for a change."""
        ...

    def ratios(self, change: Change, now: _O, after: _O) -> Mapping[str, float]:
        """Return the work of a step with a change over that without it, by name."""
        ...


class Search:
    """Finds the changes, once, when somebody asks.

    Args:
        trial: the model, which does not fit for sure.
        outcome: of it.
        judge: of the memory.
    """

    def __init__(self, trial: Trial, outcome: _O, judge: Judge[_O]):
        self._climbed = lambda say: climbed(trial, outcome, judge, say)
        self._ladder: Ladder | None = None

    def ladder(self, say: Say = silent) -> Ladder:
        """The changes.

        Args:
            say: told which change is tried.
        """
        if self._ladder is None:
            self._ladder = self._climbed(say)
        return self._ladder


def climbed(trial: Trial, outcome: _O, judge: Judge[_O], say: Say) -> Ladder:
    """Change a program until it fits, one way after the other.

    Args:
        trial: the program.
        outcome: of it as it is.
        judge: of the memory.
        say: told which change is tried.
    """
    rungs: list[Rung] = []
    left_out: list[str] = list(judge.left_out)
    opened: list[Change] = []
    for number, ways in enumerate(judge.ways):
        if outcome.verdict is Verdict.FITS:
            break
        stays = judge.stays(outcome, judge.ways[number:])
        if stays is not None:
            return Ladder(rungs=tuple(rungs), left_out=tuple(left_out), stays=stays)
        try:
            best = _best(list(ways(trial)), opened, outcome, judge, say)
        except NotOffered as reason:
            left_out.append(str(reason))
        except FAILURES as error:
            left_out.append(f"{ways.__name__.replace('_', ' ')}: {_first_line(error)}")
        else:
            if best is not None:
                change, rung, outcome = best
                rungs.append(rung)
                opened.append(change)
                trial = change.trial
    return Ladder(rungs=tuple(rungs), left_out=tuple(left_out))


def _best(
    several: list[Change], opened: list[Change], now: _O, judge: Judge[_O], say: Say
) -> tuple[Change, Rung, _O] | None:
    """The least of several changes that suffices, or else the last that saves something.

    Raises:
        NotOffered: what was tried saves nothing.
    """
    best, why = None, ""
    for change in [each for each in several if judge.may_fit(each, now)] or several[-1:]:
        say(f"trying {change.name}")
        try:
            after = _after(change, opened, now, judge)
        except FAILURES:
            if best is None:
                raise
            break  # what is left goes further than what failed
        rung = Rung(
            name=change.name,
            lines=judge.lines(change, after),
            warning=change.warning,
            saved=now.size.expected - after.size.expected,
            ratios=judge.ratios(change, now, after),
            answer=after,
        )
        why = not_worth_it(rung, judge.needed(now))
        if not why:
            best = change, rung, after
        if after.verdict is Verdict.FITS:
            break
    if best is None and why:
        raise NotOffered(why)
    return best


def not_worth_it(rung: Rung, needed: float) -> str:
    """Why a change is not offered; empty if it is.

    Args:
        rung: the change.
        needed: bytes without it.
    """
    if rung.saved <= _LEAST * needed:
        return f"{rung.name}: saves less than {100 * _LEAST:.0f} %"
    ratio, name = max(((each, name) for name, each in rung.ratios.items()), default=(0.0, ""))
    little = rung.saved < _LITTLE * needed and rung.answer.verdict is not Verdict.FITS
    if ratio >= _MUCH and little:
        saved = 100 * rung.saved / needed
        return f"{rung.name}: saves {saved:.0f} %, and a step has {ratio:.2f} times the {name}"
    return ""


def _after(change: Change, opened: list[Change], now: _O, judge: Judge[_O]) -> _O:
    with contextlib.ExitStack() as stack:
        for each in (*opened, change):
            stack.enter_context(each.around(change.trial.module))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # the user has had those of the model as it is
        return judge.after(change, now)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__

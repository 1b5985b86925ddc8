"""Search for the cheapest changes that make a model fit; each is captured and estimated.

A front-end lists its changes and says what each does to memory (``Judge``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch

from abele.errors import AbeleError
from abele.fit.estimate import Interval, Verdict
from abele.fit.limits import bytes_text
from abele.fit.questions import Say, silent

#: Least share of the programs' memory that a change saves: in any case, and if a step has
#: ``_MUCH`` times the work and the model does not fit all the same.
_LEAST, _LITTLE, _MUCH = 0.01, 0.1, 2.0

#: Errors of capturing a forward that was not written for a change.
FAILURES = (AbeleError, RuntimeError, TypeError, ValueError)


class NotOffered(Exception):
    """A change does not apply to a program; the text says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """A change to a program.

    Attributes:
        name: description.
        lines: Python to add to the program.
        trial: the front-end's program with the change; has a ``module``.
        around: context for the trial's module while it is captured.
        warning: other effects of the change, or empty.
        timed: the model of stages estimates the time of a step with the change.
        least: least remaining shares of memory that is always live, and of all other memory.
    """

    name: str
    lines: tuple[str, ...]
    trial: Any
    around: Callable[[torch.nn.Module], contextlib.AbstractContextManager[Any]] = (
        contextlib.nullcontext
    )
    warning: str = ""
    timed: bool = True
    least: tuple[float, float] = (1.0, 0.0)


#: A kind of change; yields changes from the least to the most.
Ways = Callable[[Any], Iterator[Change]]


class Outcome(Protocol):
    """An estimate of a program and its verdict."""

    @property
    def verdict(self) -> Verdict:
        """Verdict on the changed program, by its estimate."""
        ...

    @property
    def size(self) -> Interval:
        """Estimated peak memory in bytes."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rung:
    """A change on top of the preceding ones.

    Attributes:
        name: description.
        lines: Python to add to the program.
        warning: other effects of the change, or empty.
        saved: expected reduction of peak bytes.
        ratios: work of a step with the change relative to that without, by name.
        answer: estimate with this change and the preceding ones.
    """

    name: str
    lines: tuple[str, ...]
    warning: str
    saved: float
    ratios: Mapping[str, float]
    answer: Outcome

    def data(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
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
    """Memory that no change reduces.

    Attributes:
        process: bytes of this process without the model, at most.
        state: bytes of weights and optimizer state, in half if that is offered.
    """

    process: float
    state: float

    @property
    def size(self) -> float:
        """Sum of both, in bytes."""
        return self.process + self.state


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ladder:
    """Changes that together make a model fit, or need less memory if none suffices.

    Attributes:
        rungs: the changes.
        left_out: changes that are not offered, with reasons.
        stays: memory that exceeds the limit whatever is changed, which ended the search, or None.
    """

    rungs: tuple[Rung, ...]
    left_out: tuple[str, ...]
    stays: Stays | None = None

    @property
    def fits(self) -> bool:
        """True if the model fits with all changes."""
        return bool(self.rungs) and self.rungs[-1].answer.verdict is Verdict.FITS

    def data(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {
            "fits": self.fits,
            "rungs": [rung.data() for rung in self.rungs],
            "left_out": list(self.left_out),
            "stays": None if self.stays is None else dataclasses.asdict(self.stays),
        }


_O = TypeVar("_O", bound=Outcome)


class Judge(Protocol[_O]):
    """A memory, and the effect of changes on it.

    Attributes:
        ways: kinds of changes, the cheapest first.
        left_out: changes that are never offered, with reasons.
    """

    ways: Sequence[Ways]
    left_out: Sequence[str]

    def stays(self, now: _O, ways: Sequence[Ways]) -> Stays | None:
        """Return memory that exceeds the limit despite ``ways``; None if they may suffice."""
        ...

    def needed(self, now: _O) -> float:
        """Return the bytes that changes can reduce."""
        ...

    def may_fit(self, change: Change, now: _O) -> bool:
        """Return whether a change may suffice, before anything is captured."""
        ...

    def after(self, change: Change, now: _O) -> _O:
        """Capture and estimate the changed program."""
        ...

    def lines(self, change: Change, after: _O) -> tuple[str, ...]:
        """Return the lines of Python for a change."""
        ...

    def ratios(self, change: Change, now: _O, after: _O) -> Mapping[str, float]:
        """Return the work of a step with a change over that without it, by name."""
        ...


class Search:
    """Searches for changes when first asked.

    Args:
        trial: the model, which may not fit.
        outcome: its estimate.
        judge: the memory.
    """

    def __init__(self, trial: Any, outcome: _O, judge: Judge[_O]):
        self._search: Callable[[Say], Ladder] = lambda say: _climbed(trial, outcome, judge, say)
        self._ladder: Ladder | None = None

    def ladder(self, say: Say = silent) -> Ladder:
        """Return the changes; ``say`` is called with each change that is tried."""
        if self._ladder is None:
            self._ladder = self._search(say)
        return self._ladder


def _climbed(trial: Any, outcome: _O, judge: Judge[_O], say: Say) -> Ladder:
    """Change a program until it fits, one kind of change after the other."""
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
    """Return the least of several changes that suffices, or else the last that saves memory.

    Raises:
        NotOffered: none of them saves memory.
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
    """Return why a change is not offered, given the bytes without it; empty if it is."""
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


def changes(ladder: Ladder) -> list[str]:
    """Return lines of text that list the changes."""
    lines = ["", *_outcome(ladder)]
    for rung in ladder.rungs:
        ratios = [f"{ratio:.2f} times the {name}" for name, ratio in rung.ratios.items()]
        per_step = f", a step has {' and '.join(ratios)}" if ratios else ""
        size = rung.answer.size
        sizes = f"{bytes_text(size.low)} to {bytes_text(size.high)}"
        lines.append(f"  {rung.name}: {bytes_text(rung.saved)} less ({sizes}){per_step}")
        lines += [f"      {line}" for line in rung.lines]
        lines += [f"    Warning: {rung.warning}."] if rung.warning else []
    if ladder.stays is None:
        lines += ["Not offered:", *(f"  {reason}." for reason in ladder.left_out)]
    elif ladder.rungs:
        lines.append(_staying(ladder.stays))
    return lines


def _outcome(ladder: Ladder) -> list[str]:
    if ladder.fits:
        return ["It fits with these changes, which were estimated one after the other:"]
    if ladder.rungs:
        return ["It needs less with these changes, but none of them is sure to make it fit:"]
    if ladder.stays is not None:
        return [_staying(ladder.stays)]
    return ["No change that is offered here makes it need less."]


def _staying(stays: Stays) -> str:
    return (
        "No change that is offered here is sure to make it fit: weights and the optimizer's state "
        f"take {bytes_text(stays.state)} whatever is changed, and the process without the model "
        f"may take {bytes_text(stays.process)}."
    )

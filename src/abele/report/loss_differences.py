"""Differences between the losses of two runs, bit for bit, from their journals.

A journal has the loss of each of the first calls, later one every quarter of a second. Only losses
of the same update are compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from abele.report.journal import Journal
from abele.report.record import Run

#: A finite loss, or None and what it is instead.
_Loss = tuple[float | None, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """The losses of one update.

    Attributes:
        update: number of the update, from 1; the last one of a call with several.
        first: loss of the first run; None if it is infinite or NaN.
        second: loss of the second run; None if it is infinite or NaN.
        instead: ``nan``, ``inf`` or ``-inf`` for each loss that is not finite; empty for a finite
            one, or if a record does not say.
    """

    update: int
    first: float | None
    second: float | None
    instead: tuple[str, str] = ("", "")

    @property
    def not_finite(self) -> bool:
        """True if neither loss is finite."""
        return self.first is None and self.second is None

    @property
    def known(self) -> bool:
        """True if the records determine whether the losses are equal."""
        return not self.not_finite or all(self.instead)

    @property
    def same(self) -> bool:
        """True if the losses are equal, bit for bit if they are finite."""
        return self.first == self.second and self.instead[0] == self.instead[1]

    @property
    def distance(self) -> float | None:
        """Distance relative to the larger loss; None unless both are finite."""
        if self.first is None or self.second is None:
            return None
        largest = max(abs(self.first), abs(self.second))
        return abs(self.first - self.second) / largest if largest else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Losses:
    """The losses of two runs.

    Attributes:
        updates: number of updates of each run.
        compared: number of updates whose losses both records have.
        parted: number of these that differ.
        before: last update with equal losses before the first difference; 0 if there is none.
        first: first update whose losses differ; None if none does.
        largest: pair with the largest distance; None if no pair that differs is finite.
        not_finite: first update at which both losses are equal and not finite, or None.
        stays: all later pairs are not finite, too.
        a_call: updates per call, of each run.
        known: number of losses in each journal.
        training: a run trains; otherwise batches are counted instead of updates.
    """

    updates: tuple[int, int]
    compared: int
    parted: int
    before: int
    first: Pair | None
    largest: Pair | None
    not_finite: Pair | None
    stays: bool
    a_call: tuple[int, int]
    known: tuple[int, int]
    training: bool


def compare(first: tuple[Run, Journal], second: tuple[Run, Journal]) -> Losses:
    """Compare the losses of two runs, update by update."""
    one, other = _losses(*first), _losses(*second)
    pairs = [
        _pair(update, one[update], other[update]) for update in sorted(one.keys() & other.keys())
    ]
    pairs = [each for each in pairs if each.known]
    differ = [each for each in pairs if not each.same]
    alike = next((each for each in pairs if each.not_finite and each.same), None)
    begin = differ[0].update if differ else None
    same = [each.update for each in pairs if begin is None or each.update < begin]
    apart = [(each.distance, each) for each in differ]
    finite = [(distance, -each.update, each) for distance, each in apart if distance is not None]
    return Losses(
        updates=(_updates(*first), _updates(*second)),
        compared=len(pairs),
        parted=len(differ),
        before=same[-1] if same else 0,
        first=differ[0] if differ else None,
        largest=max(finite, key=lambda each: each[:2])[2] if finite else None,
        not_finite=alike,
        stays=alike is not None and all(e.not_finite for e in pairs if e.update > alike.update),
        a_call=(_a_call(first[0]), _a_call(second[0])),
        known=(len(one), len(other)),
        training=first[0].training or second[0].training,
    )


def _pair(update: int, first: _Loss, second: _Loss) -> Pair:
    (one, of_one), (other, of_other) = first, second
    return Pair(update=update, first=one, second=other, instead=(of_one, of_other))


def _a_call(run: Run) -> int:
    return run.configuration.get("device_iterations", 1)


def _updates(run: Run, journal: Journal) -> int:
    return journal.calls * _a_call(run)


def _losses(run: Run, journal: Journal) -> dict[int, _Loss]:
    """Return losses by the number of updates made at the end of their call."""
    losses: dict[int, _Loss] = {}
    for each in journal.windows:
        unknown = each.count > 1 and each.not_finite > 0 and each.loss is not None
        if (each.loss is None and not each.not_finite) or unknown:
            continue  # whether its last call's was finite is not known
        losses[(each.first + each.count) * _a_call(run)] = each.loss, each.instead
    return losses


def reasons(losses: Losses, run: Run) -> Iterator[str]:
    """Yield possible reasons for losses that differ, for runs that differ in nothing recorded."""
    assert losses.first is not None
    random = _random(run)
    if losses.before:
        yield (
            f"Up to update {losses.before} losses are the same, so what the runs began with is "
            "most likely the same: weights, the first batch and random numbers."
        )
    else:
        yield (
            "The first losses that both have differ, so what the runs began with may differ: "
            "weights (made from a seed, or read from a file) or the first batches."
        )
    yield "Records do not have the data: samples, their order, or what is done to them on the host."
    if random:
        yield f"Programs draw random numbers ({', '.join(random)}). {_seed(run)}"
    else:
        yield f"Programs draw no random numbers. {_seed(run)}"
    if run.machine.threads > 1:
        yield (
            f"With {run.machine.threads} threads, libraries may add in another order each time. "
            "Compare two runs with one thread to rule that out."
        )


def _seed(run: Run) -> str:
    seeds = [each for each in run.options if "seed" in each.name.lower()]
    if seeds:
        return f"{seeds[0].name} is {seeds[0].value} in both."
    return "No option has set a seed, and records do not have seeds that are set otherwise."


def _random(run: Run) -> list[str]:
    """Return the operators of a run's programs that draw random numbers."""
    names = dict.fromkeys(each.name for program in run.programs for each in program.operators)
    return [name for name in names if _draws(name)]


def _draws(name: str) -> bool:
    operator: Any = torch.ops
    for part in name.split("."):
        operator = getattr(operator, part, None)
    return torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())


def next_command(runs: tuple[Run, Run]) -> Iterator[str]:
    """Yield the ``abele diff`` command that finds the first operation that differs."""
    settings = [_settings(each) for each in runs]
    if settings[0] != settings[1] and all(len(each) == 1 for each in settings):
        (one,), (other,) = settings
        yield f"abele diff SCRIPT {one} {other} says at which operation these part."


def _settings(run: Run) -> set[str]:
    """Return the settings of ``abele diff`` that a run used."""
    target = run.build.target if run.build is not None else "reference"
    if target == "reference":
        return {target}
    return {f"{target}:{each.lowering}" for each in run.programs}

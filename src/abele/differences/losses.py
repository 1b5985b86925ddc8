"""Where the losses of two runs part, bit for bit, by their journals.

A journal keeps the loss of each of the first calls, later one every quarter of a second: what is
compared are the losses that both have of the same update.
"""

from __future__ import annotations

import dataclasses

from abele.report.journal import Journal
from abele.report.record import Run

#: A finite loss, or None and what it is instead.
_Loss = tuple[float | None, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """The losses of one update.

    Attributes:
        update: which one, from 1; of a call with several, its last one.
        first: of the first run; None if it is infinite or NaN.
        second: of the second one.
        instead: what each is where it is no finite number, ``nan``, ``inf`` or ``-inf``; empty
            where it is one, or where a record does not say.
    """

    update: int
    first: float | None
    second: float | None
    instead: tuple[str, str] = ("", "")

    @property
    def not_finite(self) -> bool:
        """Whether both are no finite numbers."""
        return self.first is None and self.second is None

    @property
    def known(self) -> bool:
        """Whether records tell if they are the same."""
        return not self.not_finite or all(self.instead)

    @property
    def same(self) -> bool:
        """Whether they are the same, bit for bit if they are finite."""
        return self.first == self.second and self.instead[0] == self.instead[1]

    @property
    def distance(self) -> float | None:
        """How far they are apart, in parts of the larger; None unless both are finite."""
        if self.first is None or self.second is None:
            return None
        largest = max(abs(self.first), abs(self.second))
        return abs(self.first - self.second) / largest if largest else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Losses:
    """The losses of two runs.

    Attributes:
        updates: that each run has made.
        compared: losses that both have of the same update.
        parted: how many of these differ.
        before: the last update whose losses are the same before they part; 0 if there is none.
        first: the first update whose losses differ; None if none does.
        largest: of all from there, the one with the largest distance; None if none is finite.
        not_finite: the first update at which both are the same and no finite number; None if none
            is.
        stays: so are all later ones.
        a_call: updates in one call, of each run.
        known: losses that each run's journal has.
        training: one of them trains; else there are no updates, and batches are counted.
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
    """Losses by the number of updates made when their call was over."""
    losses: dict[int, _Loss] = {}
    for each in journal.windows:
        unknown = each.count > 1 and each.not_finite > 0 and each.loss is not None
        if (each.loss is None and not each.not_finite) or unknown:
            continue  # whether its last call's was finite is not known
        losses[(each.first + each.count) * _a_call(run)] = each.loss, each.instead
    return losses

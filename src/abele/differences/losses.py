"""Where the losses of two runs part, bit for bit, by their journals.

A journal keeps the loss of each of the first calls, later one every quarter of a second: what is
compared are the losses that both have of the same update.
"""

from __future__ import annotations

import dataclasses

from abele.report.journal import Journal
from abele.report.record import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """The losses of one update.

    Attributes:
        update: which one, from 1; of a call with several, its last one.
        first: of the first run; None if it is infinite or NaN.
        second: of the second one.
    """

    update: int
    first: float | None
    second: float | None

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
    a_call: tuple[int, int]
    known: tuple[int, int]
    training: bool


def compare(first: tuple[Run, Journal], second: tuple[Run, Journal]) -> Losses:
    """Compare the losses of two runs, update by update."""
    one, other = _losses(*first), _losses(*second)
    pairs = [
        Pair(update=update, first=one[update], second=other[update])
        for update in sorted(one.keys() & other.keys())
    ]
    differ = [each for each in pairs if each.first != each.second]
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
        a_call=(_a_call(first[0]), _a_call(second[0])),
        known=(len(one), len(other)),
        training=first[0].training or second[0].training,
    )


def _a_call(run: Run) -> int:
    return run.configuration.get("device_iterations", 1)


def _updates(run: Run, journal: Journal) -> int:
    return journal.calls * _a_call(run)


def _losses(run: Run, journal: Journal) -> dict[int, float | None]:
    """Losses by the number of updates made when their call was over; None if not finite."""
    losses: dict[int, float | None] = {}
    for each in journal.windows:
        unknown = each.count > 1 and each.not_finite > 0 and each.loss is not None
        if (each.loss is None and not each.not_finite) or unknown:
            continue  # whether its last call's was finite is not known
        losses[(each.first + each.count) * _a_call(run)] = each.loss
    return losses

"""Divides a chain of units into stages, so that the slowest device is as fast as it can be.

Dynamic programming: the best way to divide the units up to here into so many stages follows from
the best ways to divide fewer units into one stage less. Exact for the times and limits that it is
given. Units that share state stay on one device. Where the two ends of the chain share some (an
embedding and the last product, often), the last stage goes to the device of the first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Generator, Sequence
from typing import Any, cast

import torch

from abele.errors import StageError
from abele.fit.estimate import Verdict
from abele.stage.chain import Chain
from abele.stage.memory import Device, End, Memory, Span, Table, total

#: What is given up in time for stages that begin at modules further outside, and for one stage
#: less. Together less than 5 %.
_FOR_OUTER, _FOR_FEWER = 1.04, 1.005
_VERDICTS: tuple[tuple[End, Verdict], ...] = (
    ("high", Verdict.FITS),
    ("expected", Verdict.UNCERTAIN),
    ("low", Verdict.UNCERTAIN),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Partition:
    """Stages and where they run.

    Attributes:
        cuts: the units at which the second and later stages begin.
        units: number of units.
        devices: number of devices.
        verdict: whether the fullest device has enough memory.
        slowest: time of the slowest device for one micro-batch.
    """

    cuts: tuple[int, ...]
    units: int
    devices: int
    verdict: Verdict
    slowest: float

    @property
    def spans(self) -> tuple[Span, ...]:
        """The units of each stage."""
        edges = (0, *self.cuts, self.units)
        return tuple(
            Span(stage=stage, begin=begin, end=end)
            for stage, (begin, end) in enumerate(itertools.pairwise(edges))
        )

    @property
    def homes(self) -> tuple[int, ...]:
        """The device of each stage, from 0."""
        return tuple(stage % self.devices for stage in range(len(self.cuts) + 1))


def partition(chain: Chain, devices: int, device: Device, micro_batches: int) -> Partition:
    """Divide a chain among devices.

    Args:
        chain: the model.
        devices: number of devices; each gets at least one unit.
        device: the memory of each.
        micro_batches: that one update sees, or one call without training.

    Raises:
        StageError: there are not as many places where a stage can begin.
    """
    if devices < 1:
        raise StageError(f"A model runs on one device at least, not on {devices}.")
    with _one_thread():
        search = _Search(chain, devices, device, micro_batches)
        depths = sorted({unit.depth for unit in chain.units[1:]})
        results = [search.best(depth) for depth in depths or [0]]
    best = results[-1]
    if best is None:
        raise StageError(
            f"There are {devices} devices, and {search.most_devices()} of them can get a part of "
            "the model: stages begin where a module is called, and units that share parameters "
            "stay together. Ask for fewer."
        )
    good = (
        each
        for each in results
        if each is not None
        and _rank(each) == _rank(best)
        and each.slowest <= best.slowest * _FOR_OUTER
    )
    return next(good, best)


@contextlib.contextmanager
def _one_thread() -> Generator[None]:
    """While open, torch computes in one thread: for thousands of small tables, several only wait.

    Measured on a chain of 303 units: 0.46 s of processor time instead of 3.4 s with two. torch
    knows this for the whole process only, so others that compute meanwhile have one thread, too;
    it is put back in every way out.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _rank(result: Partition) -> int:
    return list(Verdict).index(result.verdict)


class _Search:
    def __init__(self, chain: Chain, devices: int, device: Device, micro_batches: int):
        self.chain, self.devices, self.limit = chain, devices, device.size
        self.memory, self.micro_batches = Memory(chain, device), micro_batches
        times = [unit.forward + unit.backward for unit in chain.units]
        self.seconds = total(times)
        self._known: dict[tuple[int, int, End | None], Table] = {}
        self._without: dict[int | None, frozenset[int]] = {}

    def most_devices(self) -> int:
        """Return the largest number of devices that each get a part."""
        return len(self._places(len(self.chain.units), wraps_from=None)) + 1

    def best(self, depth: int) -> Partition | None:
        """Return the best partition whose stages begin at modules of at most some depth."""
        for end, verdict in (*_VERDICTS, (None, Verdict.DOES_NOT_FIT)):
            straight = self._straight(depth, end)
            cost, cuts = straight or (float("inf"), [])
            ring = self._ring(depth, end, below=cost / _FOR_FEWER)
            if straight is None and ring is None:
                continue
            cost, cuts = ring or (cost, cuts)
            return Partition(
                cuts=tuple(cuts),
                units=len(self.chain.units),
                devices=self.devices,
                verdict=verdict,
                slowest=cost,
            )
        return None

    # -- one stage per device ----------------------------------------------------------------

    def _straight(self, depth: int, end: End | None) -> tuple[float, list[int]] | None:
        places = self._places(depth, wraps_from=None)
        tables = [self._times(stage, self.devices, end) for stage in range(self.devices)]
        units = len(self.chain.units)
        return _divided([0, *places, units], tables, last=units)

    def _places(self, depth: int, wraps_from: int | None) -> list[int]:
        """Return the locations where stages other than the first may begin.

        Args:
            depth: largest depth of the modules there.
            wraps_from: states that are used before this unit may be on both sides.
        """
        closed = self._closed(wraps_from)
        units = enumerate(self.chain.units)
        return [i for i, unit in units if i and i not in closed and unit.depth <= depth]

    def _closed(self, wraps_from: int | None) -> frozenset[int]:
        """Units at which no stage begins, because those around them share state."""
        if wraps_from not in self._without:
            self._without[wraps_from] = frozenset(
                place
                for uses in self.chain.ties
                if wraps_from is None or uses[0] >= wraps_from
                for place in range(uses[0] + 1, uses[-1] + 1)
            )
        return self._without[wraps_from]

    def _times(self, stage: int, stages: int, end: End | None) -> Table:
        """Return the time of each range as some stage; infinite if that is not allowed."""
        key = stage, stages, end
        if key not in self._known:
            self._known[key] = self._timed(*key)
        return self._known[key]

    def _timed(self, stage: int, stages: int, end: End | None) -> Table:
        times = self.seconds.clone()
        times[torch.ones_like(times, dtype=torch.bool).tril()] = float("inf")  # nothing in it
        for place, unit in enumerate(self.chain.units):
            if place:  # the module is called again: its block would begin again behind the stage
                times[place, place : unit.until + 1] = float("inf")
        if end is not None:
            table = self.memory.table(end, stage, stages, self.micro_batches)
            times[table > self.limit] = float("inf")
        return times

    # -- the last stage on the first device --------------------------------------------------

    def _ring(self, depth: int, end: End | None, below: float) -> tuple[float, list[int]] | None:
        """Divide into one more stage, with the units at both ends on one device.

        Args:
            depth: as for ``best``.
            end: as for ``best``.
            below: slower partitions are of no use.
        """
        units, stages = len(self.chain.units), self.devices + 1
        if self.devices < 2 or not self.chain.ties:
            return None
        ends = self.seconds[0, :, None] + self._times(stages - 1, stages, None)[:, units][None, :]
        if end is not None:
            full = self.memory.pair(end, stages, self.micro_batches)
            ends = torch.where(full > self.limit, float("inf"), ends)
        tables = [self._times(stage, stages, end) for stage in range(1, self.devices)]
        best: tuple[float, list[int]] | None = None
        for first in self._places(depth, wraps_from=units):
            if self.seconds[0, first] >= below:
                break  # and all that follow take longer
            last = self._last_around(first)
            if last is None:
                continue
            places = [p for p in self._places(depth, wraps_from=first) if p > first]
            # What lies between takes its share on one of the devices there, however it is divided.
            least = torch.maximum(ends[first], self.seconds[first] / len(tables))
            shares: list[float] = cast("Any", least).tolist()
            allowed = [p for p in places if p <= last and shares[p] < below]
            if not allowed:
                continue
            made = _ended([first, *places], tables, allowed, ends[first])
            if made is not None and made[0] < below:
                best, below = (made[0], [first, *made[1]]), made[0]
        return best

    def _last_around(self, first: int) -> int | None:
        """Return the latest start of the last stage if the first one ends here.

        None if they share no state. Nothing between may share any with them: only the last stage
        uses what the first one shares. ``_closed`` handles what units after it share.
        """
        around = [uses for uses in self.chain.ties if uses[0] < first <= uses[-1]]
        return min((use for uses in around for use in uses if use >= first), default=None)


def _divided(
    places: Sequence[int], tables: Sequence[Table], last: int
) -> tuple[float, list[int]] | None:
    """Return the least largest time of consecutive ranges, and the starts of later ones."""
    return _ended(places[:-1], tables, [last], None)


def _ended(
    places: Sequence[int],
    tables: Sequence[Table],
    lasts: Sequence[int],
    beside: torch.Tensor | None,
) -> tuple[float, list[int]] | None:
    """Find the best sequence of ranges from the first location to one of ``lasts``.

    Args:
        places: locations where ranges may begin, ascending.
        tables: for each range its times by begin and end.
        lasts: locations where the last range may end.
        beside: for each location the time of the remaining units if the last range ends there.

    Returns:
        The time of the slowest range, and the starts of all but the first; with ``beside`` also the
        end of the last.
    """
    grid = sorted({*places, *lasts})
    if not lasts:
        return None
    index = torch.tensor(grid)
    reach = torch.full((len(grid),), float("inf"), dtype=torch.float64)
    reach[0] = 0.0
    begins: list[torch.Tensor] = []
    for table in tables:
        reach, begin = torch.maximum(reach[:, None], table[index[:, None], index]).min(0)
        begins.append(begin)
    ends = [grid.index(place) for place in lasts]
    costs = reach[ends] if beside is None else torch.maximum(reach[ends], beside[lasts])
    chosen = int(costs.argmin())
    if not torch.isfinite(costs[chosen]):
        return None
    path = [ends[chosen]]
    for begin in reversed(begins):
        path.append(int(begin[path[-1]]))
    path.reverse()
    inner = path[1:-1] if beside is None else path[1:]
    return float(costs[chosen]), [grid[each] for each in inner]

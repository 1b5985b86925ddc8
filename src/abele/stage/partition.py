"""Divides a chain of units into pipeline stages, so that the slowest device is as fast as possible.

Dynamic programming: the best division of the first units into n stages follows from the best
divisions of fewer units into n - 1 stages. It is exact for the modelled times and limits. Units
that share state stay on one device. If both ends of the chain share state (often an embedding and
the last GEMM), the last stage is placed on the device of the first.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from abele.errors import StageError
from abele.fit.estimate import Verdict
from abele.stage.memory import Chain, Device, End, Memory, Span, Table, total

#: What is given up in time for stages that begin at modules further outside, and for one stage
#: less. Together less than 5 %.
_FOR_OUTER, _FOR_FEWER = 1.04, 1.005
_VERDICTS: tuple[tuple[End | None, Verdict], ...] = (
    ("high", Verdict.FITS),
    ("expected", Verdict.UNCERTAIN),
    ("low", Verdict.UNCERTAIN),
    (None, Verdict.DOES_NOT_FIT),
)
#: The time of the slowest device, and the units at which the second and later stages begin.
_Division = tuple[float, list[int]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Partition:
    """A division of a model into pipeline stages, with the device of each stage.

    Attributes:
        spans: the units of each stage.
        homes: the device of each stage, from 0.
        verdict: whether the fullest device has enough memory.
        slowest: time of the slowest device for one micro-batch.
    """

    spans: tuple[Span, ...]
    homes: tuple[int, ...]
    verdict: Verdict
    slowest: float


def partition(chain: Chain, devices: int, device: Device, micro_batches: int) -> Partition:
    """Divide a model's chain of units among pipeline devices.

    Args:
        chain: the model.
        devices: number of devices; each gets at least one unit.
        device: the memory of each device.
        micro_batches: number of micro-batches in one update, or in one call without training.

    Raises:
        StageError: the model has too few units at which a stage can begin.
    """
    if devices < 1:
        raise StageError(f"A model runs on one device at least, not on {devices}.")
    search = _Search(chain, devices, device, micro_batches)
    for end, verdict in _VERDICTS:
        best = search.best(end)
        if best is not None:
            slowest, cuts = best
            edges = enumerate(itertools.pairwise((0, *cuts, len(chain.units))))
            return Partition(
                spans=tuple(Span(stage=n, begin=begin, end=end) for n, (begin, end) in edges),
                homes=tuple(stage % devices for stage in range(len(cuts) + 1)),
                verdict=verdict,
                slowest=slowest,
            )
    raise StageError(
        f"There are {devices} devices, and {search.most_devices()} of them can get a part of "
        "the model: stages begin where a module is called, and units that share parameters "
        "stay together. Ask for fewer."
    )


class _Search:
    def __init__(self, chain: Chain, devices: int, device: Device, micro_batches: int):
        self.chain, self.devices, self.limit = chain, devices, device.size
        self.memory, self.micro_batches = Memory(chain, device), micro_batches
        self.units = len(chain.units)
        self.time = total([unit.time for unit in chain.units])
        self._known: dict[tuple[int, int, End | None], Table] = {}

    def most_devices(self) -> int:
        """Return the largest number of devices among which the model can be divided."""
        return len(self._places(self.units, self.chain.ties)) + 1

    def best(self, end: End | None) -> _Division | None:
        """Return the fastest division, preferring stages that begin at outer modules.

        Args:
            end: the bound of the memory estimate that has to fit; None for no limit.
        """
        depths = sorted({unit.depth for unit in self.chain.units[1:]}) or [0]
        found = [self._divided(depth, end) for depth in depths]
        best = found[-1]
        if best is None:
            return None
        return next(each for each in found if each and each[0] <= best[0] * _FOR_OUTER)

    def _divided(self, depth: int, end: End | None) -> _Division | None:
        """Return the fastest division with stages that begin at modules up to some depth."""
        grid = [0, *self._places(depth, self.chain.ties), self.units]
        tables = [self._times(stage, self.devices, end) for stage in range(self.devices)]
        straight = _shortest(grid, tables)
        below = straight[0] / _FOR_FEWER if straight else math.inf
        return self._ring(depth, end, below) or straight

    def _places(self, depth: int, ties: Sequence[tuple[int, ...]]) -> list[int]:
        """Return the units at which stages may begin: not between units that share state."""
        return [
            place
            for place, unit in enumerate(self.chain.units)
            if place
            and unit.depth <= depth
            and not any(uses[0] < place <= uses[-1] for uses in ties)
        ]

    def _times(self, stage: int, stages: int, end: End | None) -> Table:
        """Return the time of each range of units as a stage; infinite if it is not allowed."""
        key = stage, stages, end
        if key not in self._known:
            times = self.time.copy()
            times[np.tril_indices_from(times)] = math.inf  # nothing in it
            for place, unit in enumerate(self.chain.units):
                if place:  # the module is called again: its block would begin again behind it
                    times[place, place : unit.until + 1] = math.inf
            if end is not None:
                table = self.memory.table(end, stage, stages, self.micro_batches)
                times[table > self.limit] = math.inf
            self._known[key] = times
        return self._known[key]

    def _ring(self, depth: int, end: End | None, below: float) -> _Division | None:
        """Return a division with the first and the last stage on one device, or None.

        Args:
            depth: as for ``_divided``.
            end: as for ``best``.
            below: upper limit of the slowest device's time.
        """
        stages, ties = self.devices + 1, self.chain.ties
        if self.devices < 2 or not ties:
            return None
        tables = [self._times(stage, stages, end) for stage in range(1, self.devices)]
        full = self.time * 0
        if end is not None:
            full = self.memory.pair(end, stages, self.micro_batches)
        best: _Division | None = None
        for last in reversed(self._places(depth, ())):
            behind = self.time[last, self.units]
            if behind >= below:
                break  # and those before it take longer
            # The first stage has all earlier units that share state with the last stage.
            least = [u for uses in ties if uses[-1] >= last for u in uses if u < last]
            if not least:
                continue
            ends = np.full_like(self.time, math.inf)
            ends[0] = np.where(full[:, last] > self.limit, math.inf, self.time[0] + behind)
            ends[0, : max(least) + 1] = math.inf
            before = [uses for uses in ties if uses[-1] < last]
            grid = [0, *(p for p in self._places(depth, before) if p < last), last]
            found = _shortest(grid, [ends, *tables])
            if found is not None and found[0] < below:
                below = found[0]
                best = below, [*found[1], last]
        return best


def _shortest(grid: Sequence[int], tables: Sequence[Table]) -> _Division | None:
    """Minimize the time of the slowest range of units; return it and the begins of ranges.

    Args:
        grid: units at which ranges may begin or end, ascending, from first to last.
        tables: times of each range by begin and end.
    """
    reach = np.full(len(grid), math.inf)
    reach[0] = 0.0
    begins: list[np.ndarray] = []
    for table in tables:
        costs = np.maximum(reach[:, None], table[np.ix_(grid, grid)])
        begins.append(costs.argmin(0))
        reach = costs.min(0)
    if not math.isfinite(reach[-1]):
        return None
    position, cuts = len(grid) - 1, list[int]()
    for begin in reversed(begins[1:]):
        position = int(begin[position])
        cuts.append(grid[position])
    return float(reach[-1]), cuts[::-1]

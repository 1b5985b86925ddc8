"""Memory of each range of units as a stage of a pipeline.

A tile of a second-generation IPU (``mk2``) runs its part of a program from the memory in which its
part of the tensors is, so code and exchange take from the same bytes. How much, only the vendor's
compiler knows; here it is a band, an assumption that no measurement of this project stands behind.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch

from abele.fit import limits
from abele.fit.estimate import Interval, Part
from abele.stage.chain import BATCH, Chain, State, Value

#: Bytes or seconds, float64 ``[units + 1, units + 1]``.
Table = torch.Tensor


def total(each: Sequence[float]) -> Table:
    """Sum a number per unit over each range; 0 for an empty range."""
    before = torch.tensor([0.0, *each], dtype=torch.float64).cumsum(0)
    return (before[None, :] - before[:, None]).clamp(min=0)


def largest(each: Sequence[float]) -> Table:
    """Return the maximum of a number per unit over each range; 0 for an empty range."""
    units = len(each)
    table = torch.zeros(units + 1, units + 1, dtype=torch.float64)
    values = torch.tensor(each, dtype=torch.float64)
    for begin in range(units):
        table[begin, begin + 1 :] = values[begin:].cummax(0).values
    return table


def counted_once(
    units: int, items: Iterable[tuple[float, Sequence[int]]], producers: Iterable[int | None]
) -> Table:
    """Sum the sizes of the items that units of each range use, each item once.

    Args:
        units: number of units.
        items: a size, and the units that use it, ascending.
        producers: for each item the unit that computes it, so that only ranges after it count; None
            if all count.
    """
    # A use counts for ranges that begin behind the use before and hold it: a rectangle of ranges.
    edges = torch.zeros(units + 2, units + 2, dtype=torch.float64)
    for (size, uses), producer in zip(items, producers, strict=True):
        before = -1 if producer is None else producer
        for use in uses:
            if use > before:
                edges[before + 1, use + 1] += size
                edges[use + 1, use + 1] -= size
            before = max(before, use)
    return edges.cumsum(0).cumsum(1)[: units + 1, : units + 1]


End = Literal["low", "expected", "high"]
ENDS: tuple[End, ...] = ("low", "expected", "high")

_KEPT = "kept for backward"
_AGAIN = "computed again in backward"
_INSIDE = "used by one operation after another"
#: How much of what is computed again is there at once: the original's backward needs fewer values.
_OF_AGAIN = Interval(0.5, 1.0, 1.0)
#: Of two stages on one device, one at a time needs these.
_AT_TIMES = (_AGAIN, _INSIDE)


BYTES = limits.of_ipus(1).size
#: Bytes of the widest number: numbers of 64 bits are kept in 32.
WIDEST = 4

#: Shares of the memory for code, and for buffers and code of exchange.
_CODE = Interval(0.04, 0.15, 0.30)
#: Tensors do not divide evenly, and the first full tile ends a compile.
UNEVEN = Interval(1.0, 1.05, 1.15)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """The memory of one device, and what programs do with it.

    Attributes:
        size: bytes.
        recomputes: stages of a pipeline compute activations again in backward.
        heeds_marks: so does whatever lies between marked activations.
        optimizer_away: the optimizer's state lies in another memory.
        sums_away: so do the sums of gradients.
        weights_away: so do the weights.
        optimizer_shares: number of parts of the optimizer's state, one per replica.
        is_mk2: code and exchange are in it too.
    """

    size: int = BYTES
    recomputes: bool = True
    heeds_marks: bool = True
    optimizer_away: bool = False
    sums_away: bool = False
    weights_away: bool = False
    optimizer_shares: int = 1
    is_mk2: bool = True


def waiting(stage: int, stages: int, micro_batches: int) -> Interval:
    """Return the number of micro-batches that wait for their backward in a stage.

    One forward, one backward keeps the fewest. The original has every stage work on both in each
    turn, so that a micro-batch comes back after twice the stages that are left.
    """
    left = stages - stage
    few, many = min(left, micro_batches), min(2 * left - 1, micro_batches)
    return Interval(few, many, many)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """A stage and its units.

    Attributes:
        stage: from 0.
        begin: its first unit.
        end: the first unit behind it.
    """

    stage: int
    begin: int
    end: int


class Memory:
    """The memory of all ranges of a chain.

    Args:
        chain: the model.
        device: where a stage runs.
    """

    def __init__(self, chain: Chain, device: Device):
        self.chain, self.device = chain, device
        units = len(chain.units)
        self._nothing = torch.zeros(units + 1, units + 1, dtype=torch.float64)
        self._states = {role: self._of_states(size) for role, size in _roles(device).items()}
        self._kept = self._of_values(chain.values, _backward, behind=False)
        marked = [value for value in chain.values if value.marked and device.heeds_marks]
        self._has_marks = bool(marked)
        self._marked = self._made_inside(marked)
        self._again = self._largest_segment()
        self._enters = self._of_values(chain.values, _uses, behind=True)
        self._needs = {
            end: largest([getattr(unit.inside, end) for unit in chain.units]) for end in ENDS
        }

    def _of_values(
        self, values: Sequence[Value], uses: Callable[[Value], Sequence[int]], *, behind: bool
    ) -> Table:
        """Bytes of the values that a range uses, and with ``behind`` does not make itself."""
        return counted_once(
            len(self.chain.units),
            [(value.size, uses(value)) for value in values],
            [value.producer if behind else None for value in values],
        )

    def _made_inside(self, values: Sequence[Value]) -> Table:
        """Bytes of the values that a range makes and keeps for its backward."""
        every = self._of_values(values, _backward, behind=False)
        return every - self._of_values(values, _backward, behind=True)

    def _largest_segment(self) -> Table:
        """Bytes of what a range computes again at one time: between marked values, or all."""
        ends = sorted({value.producer for value in self.chain.values if value.marked})
        segments: dict[int, list[Value]] = {}
        for value in self.chain.values:
            if not value.marked and value.producer != BATCH:
                segment = bisect.bisect_left(ends, value.producer)
                segments.setdefault(segment, []).append(value)
        largest = self._nothing
        for values in segments.values():
            largest = torch.maximum(largest, self._made_inside(values))
        return largest

    def _of_states(self, size: Callable[[State], float]) -> Table:
        states = self.chain.states
        items = [(size(state), state.uses) for state in states]
        return counted_once(len(self.chain.units), items, [None] * len(states))

    def table(self, end: End, stage: int, stages: int, micro_batches: int) -> Table:
        """Bytes of every range, if it is this stage: the sum of ``parts``."""
        parts = self._parts(end, stage, stages, micro_batches)
        return self._with_code(sum(parts.values(), self._nothing), end)

    def pair(self, end: End, stages: int, micro_batches: int) -> Table:
        """Return the bytes of a device that runs the first and the last stage, for all boundaries.

        The row is where the first stage ends, the column where the last one begins.
        """
        first = self._parts(end, 0, stages, micro_batches)
        last = self._parts(end, stages - 1, stages, micro_batches)
        tensors = self._nothing
        for role in first:
            one, other = first[role][0, :, None], last[role][:, -1][None, :]
            tensors = tensors + (torch.maximum(one, other) if role in _AT_TIMES else one + other)
        both = sum(map(self._shared, _roles(self.device).values()), self._nothing)
        return self._with_code(tensors - both, end)

    def _shared(self, size: Callable[[State], float]) -> Table:
        """Return the bytes used both before a row's unit and from a column's on."""
        units = len(self.chain.units)
        edges = torch.zeros(units + 2, units + 2, dtype=torch.float64)
        for state in self.chain.states:
            if state.uses:  # first use < row, last use >= column
                edges[state.uses[0] + 1, 0] += size(state)
                edges[state.uses[0] + 1, state.uses[-1] + 1] -= size(state)
        return edges.cumsum(0).cumsum(1)[: units + 1, : units + 1]

    def _with_code(self, tensors: Table, end: End) -> Table:
        if not self.device.is_mk2:
            return tensors
        return tensors * getattr(UNEVEN, end) + getattr(code(), end)

    def _parts(self, end: End, stage: int, stages: int, micro_batches: int) -> dict[str, Table]:
        parts = dict(self._states)
        if self.chain.training:
            count = getattr(waiting(stage, stages, micro_batches), end)
            if (self.device.recomputes and stages > 1) or self._has_marks:
                parts[_KEPT] = count * (self._enters + self._marked)
                parts[_AGAIN] = self._again * getattr(_OF_AGAIN, end)
            else:
                parts[_KEPT] = count * self._kept
        else:
            parts["comes from other stages"] = self._enters
        parts[_INSIDE] = self._needs[end]
        return parts

    def parts(self, spans: Sequence[Span], stages: int, micro_batches: int) -> tuple[Part, ...]:
        """Return the memory of a device by role.

        Args:
            spans: stages on the device.
            stages: number of stages of the pipeline.
            micro_batches: micro-batches of one update.
        """
        sizes: dict[str, list[Interval]] = {}
        for span in spans:
            tables = [self._parts(end, span.stage, stages, micro_batches) for end in ENDS]
            for role in tables[0]:
                each = [float(table[role][span.begin, span.end]) for table in tables]
                sizes.setdefault(role, []).append(Interval(*each))
        roles = _roles(self.device)
        parts: list[Part] = []
        for role, several in sizes.items():
            size = _largest(several) if role in _AT_TIMES else Interval.sum(several)
            if role in roles:
                size = Interval.exact(sum(map(roles[role], self._states_of(spans))))
            if size.high:
                parts.append(Part(role=role, size=size, always=role in roles))
        return (*parts, *self._beside(Interval.sum(part.size for part in parts)))

    def _states_of(self, spans: Sequence[Span]) -> list[State]:
        units = {unit for span in spans for unit in range(span.begin, span.end)}
        return [state for state in self.chain.states if not units.isdisjoint(state.uses)]

    def _beside(self, tensors: Interval) -> tuple[Part, ...]:
        if not self.device.is_mk2:
            return ()
        full = of_tensors(tensors)
        uneven = Interval(*(getattr(full, e) - getattr(tensors, e) for e in ENDS))
        return (
            Part(role="tiles that are fuller than others", size=uneven, always=True),
            Part(role="code and exchange", size=code(), always=True),
        )


def _roles(device: Device) -> dict[str, Callable[[State], float]]:
    """Return the bytes of each kind of state."""
    roles: dict[str, Callable[[State], float]] = {}
    if not device.weights_away:
        roles["weights and buffers"] = lambda state: state.weight
    if not device.sums_away:
        roles["gradient sums"] = lambda state: state.sums
    if not device.optimizer_away:
        roles["optimizer state"] = lambda state: state.optimizer / device.optimizer_shares
    return roles


def _largest(several: Sequence[Interval]) -> Interval:
    return Interval(*(max(getattr(each, end) for each in several) for end in ENDS))


def _backward(value: Value) -> Sequence[int]:
    return value.backward


def _uses(value: Value) -> list[int]:
    return sorted({*value.forward, *value.backward})


def code() -> Interval:
    """Bytes of code and exchange on one IPU."""
    return _CODE.scaled(BYTES)


def of_tensors(size: Interval) -> Interval:
    """Bytes that tensors take if the fullest tile counts for all.

    Args:
        size: bytes of the tensors themselves.
    """
    return Interval(size.low * UNEVEN.low, size.expected * UNEVEN.expected, size.high * UNEVEN.high)

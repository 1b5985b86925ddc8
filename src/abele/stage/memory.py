"""Memory of pipeline stages: each is a range of a chain of units that stages cannot divide.

A unit consists of the operations from one module call at which a stage could begin to the next.

A tile of a second-generation IPU (``mk2``) stores code and tensors in the same memory, so code and
exchange reduce the bytes for tensors. Only the vendor's compiler knows how much; the interval used
here is an assumption without a measurement.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from abele.fit import limits
from abele.fit.estimate import Interval, Part

#: The producer of values that the batch contains.
BATCH = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """A part of a model that pipeline stages cannot divide.

    Attributes:
        name: path of the module at whose call it begins; empty for the model itself.
        until: last unit that begins at a call of the same module; a stage that begins here cannot
            end before it.
        time: modelled time of its forward and backward for one micro-batch.
        inside: bytes in use while it runs, in addition to state and values saved for backward.
    """

    name: str
    until: int = 0
    time: float
    inside: Interval = dataclasses.field(default_factory=lambda: Interval.exact(0))

    @property
    def depth(self) -> int:
        """Nesting depth of the module at which the unit begins."""
        return self.name.count(".") + 1 if self.name else 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Value:
    """A forward activation of a model, or a tensor of its batch.

    Attributes:
        size: bytes.
        producer: the unit that computes it, or ``BATCH``.
        forward: units whose forward reads it, ascending.
        backward: units whose backward reads it, ascending.
        marked: whether the user requests saving it instead of rematerializing it.
    """

    size: int
    producer: int
    forward: tuple[int, ...] = ()
    backward: tuple[int, ...] = ()
    marked: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """A parameter, buffer or constant with its gradient sums and optimizer state.

    Attributes:
        name: the user's name.
        weight: bytes.
        sums: bytes of the sums of its gradients.
        optimizer: bytes of the optimizer's state.
        uses: units that read or write it, ascending.
        together: whether all units that use it have to be on one device.
    """

    name: str
    weight: int
    sums: int = 0
    optimizer: int = 0
    uses: tuple[int, ...] = ()
    together: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chain:
    """A model as a chain of units for division into pipeline stages.

    Attributes:
        units: units in forward order.
        values: activations and batch tensors that units read.
        states: parameters, buffers and constants.
        training: whether there is a backward pass.
    """

    units: tuple[Unit, ...]
    values: tuple[Value, ...] = ()
    states: tuple[State, ...] = ()
    training: bool = True

    @property
    def ties(self) -> list[tuple[int, ...]]:
        """Groups of units that have to be on one device because they share state."""
        uses = {state.uses for state in self.states if state.together and len(state.uses) > 1}
        return sorted(uses)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """The memory of a pipeline device, and how programs use it.

    Attributes:
        size: bytes.
        recomputes: whether pipeline stages rematerialize activations in backward.
        heeds_marks: whether activations between marked ones are rematerialized.
        shares: fraction of each kind of state in this memory, if not all of it.
        is_mk2: whether code and exchange use the same memory.
    """

    size: int = limits.of_device(limits.MK2).size
    recomputes: bool = True
    heeds_marks: bool = True
    shares: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    is_mk2: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """A pipeline stage and its range of units.

    Attributes:
        stage: number of the stage, from 0.
        begin: first unit.
        end: first unit after the stage.
    """

    stage: int
    begin: int
    end: int


#: Bytes or times of all ranges, float64 ``[units + 1, units + 1]``.
Table = np.ndarray[Any, np.dtype[np.float64]]
End = Literal["low", "expected", "high"]
ENDS: tuple[End, ...] = ("low", "expected", "high")

_STATE = {"weight": "weights and buffers", "sums": "gradient sums", "optimizer": "optimizer state"}
_SAVED = "kept for backward"
_AGAIN = "computed again in backward"
_INSIDE = "used by one operation after another"
#: How much of what is computed again is there at once: the original's backward needs fewer values.
_OF_AGAIN = Interval(0.5, 1.0, 1.0)
#: Of two stages on one device, one at a time needs these.
_AT_TIMES = (_AGAIN, _INSIDE)
#: Shares of the memory for code, and for buffers and code of exchange.
_CODE = Interval(0.04, 0.15, 0.30)
#: Tensors do not divide evenly, and the first full tile ends a compile.
_UNEVEN = Interval(1.0, 1.05, 1.15)


def total(each: Sequence[float]) -> Table:
    """Return the sum of a number per unit over each range of units; 0 for an empty range."""
    before = np.cumsum([0.0, *each])
    return np.maximum(before[None, :] - before[:, None], 0.0)


def _largest(each: Sequence[float]) -> Table:
    """Return the maximum of a number per unit over each range of units; 0 if empty."""
    table = np.zeros((len(each) + 1, len(each) + 1))
    for begin in range(len(each)):
        table[begin, begin + 1 :] = np.maximum.accumulate(each[begin:])
    return table


def _counted_once(
    units: int, items: Iterable[tuple[float, Sequence[int]]], producers: Iterable[int | None]
) -> Table:
    """Return the sum of the sizes of items used in each range of units, each item once.

    Args:
        units: number of units.
        items: size of each item, and the units that use it, ascending.
        producers: unit that computes each item, which ranges with this unit do not count; None to
            count it in all ranges.
    """
    # A use counts for ranges that begin behind the use before and hold it: a rectangle of ranges.
    edges = np.zeros((units + 2, units + 2))
    for (size, uses), producer in zip(items, producers, strict=True):
        before = -1 if producer is None else producer
        for use in uses:
            if use > before:
                edges[before + 1, use + 1] += size
                edges[use + 1, use + 1] -= size
            before = max(before, use)
    return edges.cumsum(0).cumsum(1)[: units + 1, : units + 1]


def waiting(stage: int, stages: int, micro_batches: int) -> Interval:
    """Return the number of micro-batches whose activations a pipeline stage holds for backward.

    The 1F1B schedule holds the fewest. In the original every stage runs forward and backward in
    each turn, so that a micro-batch returns after twice the number of remaining stages.
    """
    left = stages - stage
    few, many = min(left, micro_batches), min(2 * left - 1, micro_batches)
    return Interval(few, many, many)


class Memory:
    """Estimated memory of every range of a chain's units as a pipeline stage."""

    def __init__(self, chain: Chain, device: Device):
        self.chain, self.device = chain, device
        self._states = {
            role: _counted_once(
                len(chain.units),
                [(self._state_bytes(kind, state), state.uses) for state in chain.states],
                [None] * len(chain.states),
            )
            for kind, role in _STATE.items()
        }
        self._saved = self._used(chain.values, _backward)
        marked = [value for value in chain.values if value.marked and device.heeds_marks]
        self._has_marks = bool(marked)
        self._marked = self._made_inside(marked)
        self._again = self._largest_segment()
        self._enters = self._used(
            chain.values, lambda value: sorted({*value.forward, *value.backward}), behind=True
        )
        self._inside = {
            end: _largest([getattr(unit.inside, end) for unit in chain.units]) for end in ENDS
        }

    def _state_bytes(self, kind: str, state: State) -> float:
        return getattr(state, kind) * self.device.shares.get(kind, 1.0)

    def _used(
        self,
        values: Sequence[Value],
        uses: Callable[[Value], Sequence[int]],
        *,
        behind: bool = False,
    ) -> Table:
        """Return the bytes of values that each range uses; with ``behind``, only earlier values."""
        return _counted_once(
            len(self.chain.units),
            [(value.size, uses(value)) for value in values],
            [value.producer if behind else None for value in values],
        )

    def _made_inside(self, values: Sequence[Value]) -> Table:
        """Return the bytes of values that each range computes and saves for its backward."""
        return self._used(values, _backward) - self._used(values, _backward, behind=True)

    def _largest_segment(self) -> Table:
        """Return the most bytes rematerialized together, for each range of units."""
        ends = sorted({value.producer for value in self.chain.values if value.marked})
        segments: dict[int, list[Value]] = {}
        for value in self.chain.values:
            if not value.marked and value.producer != BATCH:
                segment = bisect.bisect_left(ends, value.producer)
                segments.setdefault(segment, []).append(value)
        tables = [self._made_inside(values) for values in segments.values()]
        return np.maximum.reduce([np.zeros_like(self._saved), *tables])

    def table(self, end: End, stage: int, stages: int, micro_batches: int) -> Table:
        """Return the total bytes of each range of units as a given pipeline stage."""
        parts = self._parts(end, stage, stages, micro_batches)
        return self._with_code(sum(parts.values(), np.zeros_like(self._saved)), end)

    def pair(self, end: End, stages: int, micro_batches: int) -> Table:
        """Return the bytes of a device that runs the first and the last stage, for all boundaries.

        The row is the end of the first stage, the column the begin of the last stage.
        """
        first = self._parts(end, 0, stages, micro_batches)
        last = self._parts(end, stages - 1, stages, micro_batches)
        tensors = np.zeros_like(self._saved)
        for role in first:
            one, other = first[role][0, :, None], last[role][:, -1][None, :]
            tensors += np.maximum(one, other) if role in _AT_TIMES else one + other
        edges = np.arange(len(tensors))
        for state in self.chain.states:  # what both stages use counts once
            if state.uses:
                size = sum(self._state_bytes(kind, state) for kind in _STATE)
                tensors -= size * np.outer(edges > state.uses[0], edges <= state.uses[-1])
        return self._with_code(tensors, end)

    def _with_code(self, tensors: Table, end: End) -> Table:
        if not self.device.is_mk2:
            return tensors
        return tensors * getattr(_UNEVEN, end) + getattr(_CODE, end) * self.device.size

    def _parts(self, end: End, stage: int, stages: int, micro_batches: int) -> dict[str, Table]:
        parts = dict(self._states)
        if self.chain.training:
            count = getattr(waiting(stage, stages, micro_batches), end)
            if (self.device.recomputes and stages > 1) or self._has_marks:
                parts[_SAVED] = count * (self._enters + self._marked)
                parts[_AGAIN] = self._again * getattr(_OF_AGAIN, end)
            else:
                parts[_SAVED] = count * self._saved
        else:
            parts["comes from other stages"] = self._enters
        parts[_INSIDE] = self._inside[end]
        return parts

    def parts(self, spans: Sequence[Span], stages: int, micro_batches: int) -> tuple[Part, ...]:
        """Return the memory of a pipeline device by role.

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
        units = {unit for span in spans for unit in range(span.begin, span.end)}
        states = [state for state in self.chain.states if not units.isdisjoint(state.uses)]
        for kind, role in _STATE.items():
            sizes[role] = [Interval.exact(sum(self._state_bytes(kind, each) for each in states))]
        parts = [
            Part(
                role=role,
                size=Interval(*(max(getattr(each, end) for each in several) for end in ENDS))
                if role in _AT_TIMES
                else Interval.sum(several),
                always=role in _STATE.values(),
            )
            for role, several in sizes.items()
        ]
        parts = [part for part in parts if part.size.high]
        return (*parts, *self._of_mk2(Interval.sum(part.size for part in parts)))

    def _of_mk2(self, tensors: Interval) -> tuple[Part, ...]:
        if not self.device.is_mk2:
            return ()
        uneven = Interval(*((getattr(_UNEVEN, e) - 1) * getattr(tensors, e) for e in ENDS))
        code = _CODE.scaled(self.device.size)
        return (
            Part(role="tiles that are fuller than others", size=uneven, always=True),
            Part(role="code and exchange", size=code, always=True),
        )


def _backward(value: Value) -> Sequence[int]:
    return value.backward

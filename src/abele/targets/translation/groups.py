"""Fusion of elementwise operations into loops."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import torch

from abele.program import Program
from abele.program.core import node_phase
from abele.targets.kernel_choice import BESIDE, LOOP, NOBODY, operators_of
from abele.targets.translation.operations import Foreign, Operation, Pointwise
from abele.targets.translation.places import Buffer, Place
from abele.targets.translation.pointwise import HALF

# Larger loops gain nothing, and compilers run out of registers.
_MOST_OPERATIONS = 48
_MOST_TENSORS = 40
# A value that is stored in 16 bits is read again by a loop of its own, so many operations later.
_FAR = 16


@dataclasses.dataclass(eq=False)
class Unit:
    """Operations that run together: a fused group of elementwise ones, or a single other one.

    Attributes:
        operations: in program order.
        shape: of an elementwise loop; None while only the number of elements matters, because all
            tensors are contiguous.
        size: number of loop iterations.
        before: units that have to run first.
        memory: buffers that the operations access.
    """

    operations: list[Operation]
    shape: tuple[int, ...] | None = None
    size: int = -1
    before: set[Unit] = dataclasses.field(default_factory=lambda: set[Unit]())
    memory: set[Buffer] = dataclasses.field(default_factory=lambda: set[Buffer]())

    def __post_init__(self) -> None:
        for each in self.operations:
            self.memory.update(place.buffer for place in tensors(each))

    def add(self, operation: Operation) -> None:
        """Append an operation to the fused unit."""
        self.operations.append(operation)
        self.memory.update(place.buffer for place in tensors(operation))

    @property
    def elementwise(self) -> bool:
        """True if the unit is an elementwise loop."""
        return isinstance(self.operations[0], Pointwise)

    @property
    def first(self) -> int:
        """Position of the unit's first operation in the program."""
        return self.operations[0].position

    @property
    def last(self) -> int:
        """Position of the unit's last operation in the program."""
        return self.operations[-1].position


def grouped(
    operations: Sequence[Operation], in_any_order: Callable[[Operation], bool] = lambda _: False
) -> list[Unit]:
    """Fuse operations into units with dependencies (``before``).

    Args:
        operations: in program order.
        in_any_order: returns whether an ATen call may be reordered with other ATen calls.
    """
    return Grouping(in_any_order).of(operations)


class Grouping:
    """A greedy fuser of elementwise operations into units.

    An operation joins the unit that computed one of its operands; several such units are merged. No
    operation joins a unit if it depends on another unit that has to run after that.

    Args:
        in_any_order: see ``grouped``.
    """

    def __init__(self, in_any_order: Callable[[Operation], bool]) -> None:
        self._in_any_order = in_any_order
        self._units: list[Unit | None] = []
        self._number: dict[Unit, int] = {}
        # For each unit, all that have to run before it, as bits.
        self._ancestors: list[int] = []
        self._awaited = 0  # those for which another unit waits, as bits
        self._into: dict[Unit, Unit] = {}
        self._writers: dict[Buffer, list[tuple[Unit, Place]]] = {}
        self._readers: dict[Buffer, list[Unit]] = {}
        self._foreign: Unit | None = None

    def of(self, operations: Sequence[Operation]) -> list[Unit]:
        """Return the fused units of a list of operations."""
        for operation in operations:
            before = self._before(operation)
            unit = self._joined(operation, before) if isinstance(operation, Pointwise) else None
            if unit is None:
                unit = self._begun(operation)
            else:
                unit.add(operation)
                before = {self._current(each) for each in before}
            self._require(unit, before - {unit})
            self._note(operation, unit)
        units = [unit for unit in self._units if unit is not None]
        for unit in units:
            unit.before = {self._current(each) for each in unit.before} - {unit}
        return units

    def _begun(self, operation: Operation) -> Unit:
        unit = _unit(operation)
        self._number[unit] = len(self._units)
        self._units.append(unit)
        self._ancestors.append(0)
        return unit

    def _current(self, unit: Unit) -> Unit:
        while unit in self._into:
            unit = self._into[unit]
        return unit

    def _needs(self, unit: Unit, other: Unit) -> bool:
        return bool(self._ancestors[self._number[unit]] >> self._number[other] & 1)

    def _require(self, unit: Unit, before: set[Unit]) -> None:
        """Add ``before`` to the dependencies of a unit and of all units after it."""
        number = self._number[unit]
        more = self._ancestors[number]
        for each in before:
            more |= self._ancestors[self._number[each]] | 1 << self._number[each]
        unit.before |= before
        if more == self._ancestors[number]:
            return
        self._ancestors[number] = more
        self._awaited |= more
        self._pass_on(1 << number, more)

    def _pass_on(self, bit: int, more: int) -> None:
        """Propagate dependencies ``more`` to all units that depend on unit ``bit``."""
        if self._awaited & bit:  # most units are the last ones so far
            for index, ancestors in enumerate(self._ancestors):
                if ancestors & bit:
                    self._ancestors[index] = ancestors | more

    def _before(self, operation: Operation) -> set[Unit]:
        before: set[Unit] = set()
        for place in operation.reads:
            before.update(unit for unit, _ in self._writers.get(place.buffer, ()))
        for place in operation.writes:
            earlier = self._writers.get(place.buffer, ())
            before.update(unit for unit, other in earlier if not _disjoint(place, other))
            before.update(self._readers.get(place.buffer, ()))
        if self._is_ordered(operation) and self._foreign is not None:
            before.add(self._foreign)
        return {self._current(each) for each in before}

    def _note(self, operation: Operation, unit: Unit) -> None:
        for place in operation.reads:
            readers = self._readers.setdefault(place.buffer, [])
            if unit not in readers:
                readers.append(unit)
        for place in operation.writes:
            self._writers.setdefault(place.buffer, []).append((unit, place))
        if self._is_ordered(operation):
            self._foreign = unit

    def _is_ordered(self, operation: Operation) -> bool:
        """Return whether an ATen call must keep its order (random numbers, printing)."""
        return isinstance(operation, Foreign) and not self._in_any_order(operation)

    def _joined(self, operation: Pointwise, before: set[Unit]) -> Unit | None:
        size = operation.result.size
        candidates = [each for each in before if each.size == size and each.elementwise]
        if _widens(operation):  # joined, the float32 copy would be stored in place of 16 bits
            near = operation.position - _FAR
            candidates = [each for each in candidates if each.first >= near]
        candidates.sort(key=lambda each: each.last, reverse=True)
        unit: Unit | None = None
        for each in candidates:
            if any(other is not each and self._needs(other, each) for other in before):
                continue
            if not _fits(each, operation):
                continue
            if unit is None:
                unit = each
                before = before | {unit}
            elif self._may_merge(unit, each, operation):
                self._merge(unit, each)
                before = {self._current(other) for other in before}
        if unit is not None:
            unit.shape = _common_shape(unit, operation)
        return unit

    def _may_merge(self, unit: Unit, other: Unit, operation: Pointwise) -> bool:
        if len(unit.operations) + len(other.operations) >= _MOST_OPERATIONS:
            return False
        shapes = {each.shape for each in (unit, other)} - {None}
        together = Unit([*unit.operations, *other.operations], next(iter(shapes), None), unit.size)
        if len(shapes) > 1 or not _fits(together, operation):
            return False
        between = (
            self._needs(each, b)
            for a, b in ((unit, other), (other, unit))
            for each in map(self._current, a.before)
            if each is not b
        )
        loops = (each for each in other.operations if isinstance(each, Pointwise))
        return not any(between) and not any(_collides(unit, each) for each in loops)

    def _merge(self, unit: Unit, other: Unit) -> None:
        unit.operations = sorted(
            [*unit.operations, *other.operations], key=lambda each: each.position
        )
        unit.memory |= other.memory
        unit.shape = unit.shape or other.shape
        self._into[other] = unit
        self._units[self._number[other]] = None
        bit, old = 1 << self._number[unit], 1 << self._number[other]
        before = {self._current(each) for each in (*unit.before, *other.before)} - {unit}
        unit.before = set()
        number = self._number[unit]
        self._ancestors[number] &= ~old
        if self._awaited & old:
            self._awaited = self._awaited & ~old | bit
            for index, ancestors in enumerate(self._ancestors):
                if ancestors & old:
                    self._ancestors[index] = ancestors & ~old | bit
        self._require(unit, before)
        self._ancestors[number] &= ~(bit | old)
        # Who waited for one of the two now waits for what the other waited for, too.
        self._pass_on(bit, self._ancestors[number])


def _unit(operation: Operation) -> Unit:
    if not isinstance(operation, Pointwise):
        return Unit([operation])
    shape = None if is_flat(operation) else operation.result.shape
    return Unit([operation], shape, operation.result.size)


def is_flat(operation: Pointwise) -> bool:
    """Return whether an operation's tensors are all contiguous or have a single element."""
    size = operation.result.size
    return all(p.size == 1 or (p.size == size and p.contiguous) for p in tensors(operation))


def _common_shape(unit: Unit, operation: Pointwise) -> tuple[int, ...] | None:
    return unit.shape if is_flat(operation) else operation.result.shape


def _fits(unit: Unit, operation: Pointwise) -> bool:
    if unit.size != operation.result.size or len(unit.operations) >= _MOST_OPERATIONS:
        return False
    if not is_flat(operation) and unit.shape not in (None, operation.result.shape):
        return False
    memory = {place.buffer for place in tensors(operation)}
    return len(unit.memory | memory) <= _MOST_TENSORS and not _collides(unit, operation)


def _widens(operation: Pointwise) -> bool:
    """Return whether an operation reads what forward or backward has stored in 16 bits."""
    node = operation.part_of
    narrow = [each.dtype in HALF for each in operation.reads]
    of_update = node is not None and node_phase(node) == "update"
    return narrow == [True] and operation.result.dtype not in HALF and not of_update


def _collides(unit: Unit, operation: Pointwise) -> bool:
    """Return whether fusing an operation into a unit would break a dependency on elements."""
    shape = _common_shape(unit, operation) or (operation.result.size,)
    written = operation.result
    if written.buffer in unit.memory:
        for each in unit.operations:
            for a in each.reads:
                if a.buffer is written.buffer and not _same_elements(a, written, shape):
                    return True
    shared = [b for b in tensors(operation) if b.buffer in unit.memory]
    for each in unit.operations if shared else ():
        for a in each.writes:
            for b in shared:
                if a.buffer is b.buffer and not _same_elements(a, b, shape):
                    return True
    return False


def _same_elements(a: Place, b: Place, shape: tuple[int, ...]) -> bool:
    """Return whether two views of a buffer access the same element in each iteration."""
    if a.contiguous and b.contiguous and a.size == b.size:
        return a.offset == b.offset
    if _disjoint(a, b):
        return True
    if a.shape != b.shape or a.offset != b.offset or len(a.shape) > len(shape):
        return False
    return a.over(shape) == b.over(shape)


def _disjoint(a: Place, b: Place) -> bool:
    """Return whether two slices of a buffer certainly share no element."""
    alike = a.shape == b.shape and a.stride == b.stride
    return alike and _are_apart(a.shape, a.stride, abs(a.offset - b.offset))


@functools.lru_cache(maxsize=1 << 12)  # every slice is compared with all others of its memory
def _are_apart(shape: tuple[int, ...], stride: tuple[int, ...], distance: int) -> bool:
    """Return whether two slices that begin ``distance`` elements apart share no element."""
    steps = sorted((s, n) for s, n in zip(stride, shape, strict=True) if n > 1)
    inside = 0  # how far apart elements of one slice are along the dimensions so far
    for index, (step, size) in enumerate(steps):
        # Along all other dimensions, distances are multiples of this step.
        regular = step > 0 and all(other % step == 0 for other, _ in steps[index:])
        if regular and inside < distance % step < step - inside:
            return True
        inside += (size - 1) * step
    return distance > inside


def tensors(operation: Operation) -> Iterator[Place]:
    """Yield the views that an operation reads and writes."""
    yield from operation.reads
    yield from operation.writes


def kernel_choices(
    program: Program, units: Sequence[Unit], backend: Callable[[Unit], str]
) -> dict[torch.fx.Node, str]:
    """Return the backend of each operator of a program: loop, kernel name or torch.

    Args:
        program: after the passes of the lowering.
        units: the fused units of the program.
        backend: returns the backend of a unit.
    """
    chosen: dict[torch.fx.Node, str] = {}
    for unit in units:
        by = backend(unit)
        for node in (node for each in unit.operations for node in each.nodes):
            # What is beside a call only brings operands or results into their form.
            if chosen.get(node, LOOP) in BESIDE:
                chosen[node] = by
    return {node: chosen.get(node, NOBODY) for node in operators_of(program)}

"""Reading of a chain of units, with their state and memory, off captured programs."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
from collections.abc import Generator, Iterator, Mapping, Sequence, Set
from typing import Any, cast

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from abele import passes
from abele.containers import is_sequence
from abele.fit.estimate import Interval
from abele.passes.recomputation import kept_whole
from abele.pipeline.cut import STAGE, placed
from abele.program import Program, Role, Slot, is_getitem, is_view, marks_of, node_argument, writes
from abele.program.core import node_phase
from abele.program.cut import Parts, is_copied
from abele.report.operators import moved_bytes, operations
from abele.stage.chain import BATCH, Chain, State, Unit, Value
from abele.step.replica_groups import ACCUMULATOR
from abele.trace import scopes


@dataclasses.dataclass
class Entries:
    """The calls of modules in one forward.

    Attributes:
        paths: of the modules, in the order of the calls; empty for the model itself.
    """

    paths: list[str] = dataclasses.field(default_factory=list[str])


@contextlib.contextmanager
def recorded(module: torch.nn.Module) -> Generator[Entries]:
    """While open, a capture of ``module`` marks its operations with numbers of calls.

    Args:
        module: the model; its forward runs once.
    """
    named = cast("Iterator[tuple[str, torch.nn.Module]]", module.named_modules())
    entries, paths = Entries(), {child: path for path, child in named}
    inside: list[bool] = []

    def enter(child: torch.nn.Module, args: Any) -> None:
        # Once the model itself has been entered, in this thread or one that forward waits for.
        if child is module:
            inside.append(True)
        if inside and child in paths:
            scopes.mark(STAGE, len(entries.paths))
            entries.paths.append(paths[child])

    handle = register_module_forward_pre_hook(enter)
    try:
        yield entries
    finally:
        handle.remove()


def bytes_of(value: torch.Tensor, widest: int | None) -> int:
    """Bytes of a tensor on a device.

    Args:
        value: the tensor, or one of its shape and dtype without data.
        widest: bytes of the widest number that the device keeps; None where it keeps all.
    """
    element = value.element_size()
    return value.numel() * (element if widest is None else min(element, widest))


class Slots:
    """The state of captured programs.

    Args:
        programs: all of them.
        accumulates: parameters that are trained have sums of gradients, in any case.
        widest: as for ``bytes_of``.
    """

    def __init__(self, programs: Sequence[Program], *, accumulates: bool, widest: int | None):
        model, self._widest = programs[0], widest
        self._slots = dict(zip((n.name for n in model.placeholders()), model.inputs, strict=True))
        every = {(s.role, s.name): s for program in programs for s in program.inputs}
        self._sums = {
            name.removeprefix(ACCUMULATOR): self._bytes(slot)
            for (role, name), slot in every.items()
            if role is Role.ACCUMULATOR
        }
        self._optimizer: dict[str, int] = {}
        for (role, name), slot in every.items():
            if role is Role.OPTIMIZER_STATE:
                owner = name.rpartition(".")[0]
                self._optimizer[owner] = self._optimizer.get(owner, 0) + self._bytes(slot)
        self._accumulates = accumulates

    def of(self, node: torch.fx.Node, uses: tuple[int, ...]) -> Iterator[State]:
        """Yield the state of an input or constant of the first program, if it is state."""
        if node.op == "get_attr":
            size = bytes_of(node.meta["val"], self._widest)
            yield State(name=str(node.target), weight=size, uses=uses, together=False)
            return
        slot = self._slots[node.name]
        if slot.role is Role.PARAMETER:
            yield State(
                name=slot.name,
                weight=self._bytes(slot),
                sums=self._sums_of(slot),
                optimizer=self._optimizer.get(slot.name, 0),
                uses=uses,
            )
        elif slot.role is Role.BUFFER:
            # Who reads what another one writes has to be where it is.
            yield State(name=slot.name, weight=self._bytes(slot), uses=uses, together=slot.mutated)

    def _sums_of(self, slot: Slot) -> int:
        trained = slot.name in self._optimizer or slot.mutated
        missing = self._bytes(slot) if trained and self._accumulates else 0
        return self._sums.get(slot.name, missing)

    def _bytes(self, slot: Slot) -> int:
        value = torch.empty(slot.shape, dtype=slot.dtype, device="meta")
        return bytes_of(value, self._widest)


Node = torch.fx.Node

#: What libraries need inside, over what the operators of the program need.
_MOST = 1.25


def of_units(
    parts: Mapping[Node, int],
    order: Sequence[Node],
    kept: Set[Node],
    units: int,
    widest: int | None,
) -> list[Interval]:
    """Bytes of each unit: the largest value at least, what its order of operations needs at most.

    Args:
        parts: of each operation, from forward of the first unit to backward of the first unit.
        order: all operations, part by part.
        kept: values that are counted elsewhere.
        units: number of units.
        widest: as for ``bytes_of``.
    """
    largest, most = [0] * (2 * units), [0] * (2 * units)
    sizes = {node: _made_by(node, widest) for node in parts}
    uses = _last_uses(order)
    alive, ending = 0, dict[int, int]()
    part = -1
    for position, node in enumerate(order):
        if parts[node] != part:
            # Sums and results leave a part by its end, and what the next one takes comes with it.
            part, alive, ending = parts[node], _taken(sizes, parts, order, position, kept), {}
        size = sizes[node]
        if node not in kept and size:
            alive += size
            last = uses.get(node, position)
            ending[last] = ending.get(last, 0) + size
        if node_phase(node) != "update":
            largest[part] = max(largest[part], size)
            most[part] = max(most[part], alive)
        alive -= ending.pop(position, 0)
    pairs = zip(range(units), reversed(range(units, 2 * units)), strict=True)
    return [
        Interval(
            max(largest[one], largest[two]),
            max(most[one], most[two], largest[one], largest[two]),
            _MOST * max(most[one], most[two], largest[one], largest[two]),
        )
        for one, two in pairs
    ]


def _last_uses(order: Sequence[Node]) -> dict[Node, int]:
    """Return for each value the position of the last operation that reads it or a view of it."""
    last: dict[Node, int] = {}
    for position, node in enumerate(order):
        waiting = list(node.all_input_nodes)
        while waiting:
            each = waiting.pop()
            last[each] = position
            if is_view(each) or is_getitem(each):
                waiting += each.all_input_nodes
    return last


def _taken(
    sizes: Mapping[Node, int],
    parts: Mapping[Node, int],
    order: Sequence[Node],
    begin: int,
    kept: Set[Node],
) -> int:
    """Bytes of the values that the part which begins there takes from the one before."""
    taken: set[Node] = set()
    part = parts[order[begin]]
    for each in order[begin:]:
        if parts[each] != part:
            break
        before = (n for n in each.all_input_nodes if parts.get(n, part) < part)
        taken.update(n for n in before if n not in kept)
    return sum(sizes[node] for node in taken)


def _made_by(node: Node, widest: int | None) -> int:
    value = node.meta.get("val")
    if is_view(node) or writes(node) or not isinstance(value, torch.Tensor):
        return 0
    return bytes_of(value, widest)


#: How many operations of a matrix product or convolution a machine does while it moves a byte.
OPERATIONS_PER_BYTE = 5.0


@dataclasses.dataclass(frozen=True)
class Begin:
    """The begin of a unit at a call of the module at ``name``; see ``Unit``."""

    name: str
    until: int


def divided(program: Program, entries: Entries) -> tuple[Begin, ...]:
    """Divide a program into units at marked calls, and mark its operations with units.

    Calls that no operation follows are no unit of their own. If a unit can begin at several calls,
    it is named after the module that is called at the fewest other places.
    """
    nodes = [node for node in program.graph.graph.nodes if node.op == "call_function"]
    calls = sorted(
        {
            marks_of(node)[STAGE]
            for node in nodes
            if STAGE in marks_of(node) and node_phase(node) == "forward" and not is_copied(node)
        }
    ) or [0]
    last = {path: call for call, path in enumerate(entries.paths)}
    begins: list[Begin] = []
    before = 0
    for call in calls:
        candidates = entries.paths[before : call + 1] or [""]
        name = min(candidates, key=lambda path: (last.get(path, 0), path.count(".")))
        until = bisect.bisect_right(calls, last.get(name, 0)) - 1
        begins.append(Begin(name, max(until, len(begins))))
        before = call + 1
    calls[0] = 0  # what comes before belongs to the first
    for node in nodes:
        marks = dict(marks_of(node))
        for key in (STAGE, f"of_{STAGE}"):
            if key in marks:
                marks[key] = max(0, bisect.bisect_right(calls, marks[key]) - 1)
        node.meta["custom"] = marks
    return tuple(begins)


def read(
    programs: Sequence[Program], begins: Sequence[Begin], *, accumulates: bool, widest: int | None
) -> Chain:
    """Return the chain of captured programs.

    Args:
        programs: the first has forward, with marks; others have what belongs to the state.
        begins: its units.
        accumulates: gradients are accumulated even if these programs do not.
        widest: as for ``bytes_of``.
    """
    whole, marked = kept_whole(programs[0])
    reader = _Reader(passes.run(whole), len(begins), marked, widest)
    needs = of_units(reader.parts, reader.order, reader.kept, len(begins), widest)
    costs = reader.costs()
    units = [
        Unit(
            name=begin.name,
            until=begin.until,
            forward=costs[index],
            backward=costs[2 * len(begins) - 1 - index],
            inside=needs[index],
        )
        for index, begin in enumerate(begins)
    ]
    slots = Slots(programs, accumulates=accumulates, widest=widest)
    return Chain(
        units=tuple(units),
        values=tuple(reader.values()),
        states=tuple(
            state for node, uses in reader.state_uses().items() for state in slots.of(node, uses)
        ),
        training=any(node_phase(node) == "backward" for node in reader.order),
    )


class _Reader:
    """Producers and readers of values in a program."""

    def __init__(self, program: Program, units: int, marked: frozenset[str], widest: int | None):
        self.program, self.count = program, units
        self._marked, self._widest = marked, widest
        self.parts: Parts = placed(program, units)
        # Node by node as the parts run.
        nodes = [n for n in program.graph.graph.nodes if n in self.parts and not is_copied(n)]
        self.order = sorted(nodes, key=self.parts.__getitem__)
        self._readers: dict[Node, set[int]] = {}
        for node in self.order:
            if node_phase(node) != "update" or not writes(node):
                for source in sources(node):
                    self._readers.setdefault(source, set()).add(self.parts[node])

    def costs(self) -> list[float]:
        """Return the time of each part, as the bytes that memory could move meanwhile."""
        costs = [0.0] * (2 * self.count)
        for node in self.order:
            if node_phase(node) != "update" and not is_getitem(node):
                work = operations(node) / OPERATIONS_PER_BYTE
                costs[self.parts[node]] += max(work, moved_bytes(node))
        return costs

    @property
    def kept(self) -> set[Node]:
        """Values that forward computes and backward reads."""
        return {
            node
            for node, readers in self._readers.items()
            if self.parts.get(node, self.count) < self.count and max(readers) >= self.count
        }

    def values(self) -> Iterator[Value]:
        """Return the values of forward, and the inputs of the batch."""
        inputs = dict(zip(self.program.placeholders(), self.program.inputs, strict=True))
        for node, readers in self._readers.items():
            slot = inputs.get(node)
            made = slot.role is Role.INPUT if slot else self.parts.get(node, -1) in self._forward
            if made:
                yield Value(
                    size=_size_of(node, self._widest),
                    producer=BATCH if slot else self.parts[node],
                    forward=tuple(sorted(part for part in readers if part < self.count)),
                    backward=self._units(part for part in readers if part >= self.count),
                    marked=node.name in self._marked,
                )

    @property
    def _forward(self) -> range:
        return range(self.count)

    def _units(self, parts: Iterator[int]) -> tuple[int, ...]:
        several = {part if part < self.count else 2 * self.count - 1 - part for part in parts}
        return tuple(sorted(several))

    def state_uses(self) -> dict[Node, tuple[int, ...]]:
        """Return the units that use each input and constant, except for the batch."""
        uses: dict[Node, set[int]] = {}
        for node in self.order:
            if node_phase(node) in ("forward", "backward") or writes(node):
                for source in sources(node):
                    if source.op in ("placeholder", "get_attr"):
                        uses.setdefault(source, set()).add(self.parts[node])
        return {node: self._units(iter(parts)) for node, parts in uses.items()}


def sources(node: Node) -> Iterator[Node]:
    """Return what an operation reads, through views."""
    for each in node.all_input_nodes:
        while each.op == "call_function" and is_view(each):
            each = node_argument(each, 0)
        yield each


def _size_of(node: Node, widest: int | None) -> int:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        # Somebody picks its parts, and these count.
        return 0 if is_sequence(value) or value is None else 8
    return bytes_of(value, widest)

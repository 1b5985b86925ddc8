"""Reads a chain of units, with their state and memory, from captured programs."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from abele import passes
from abele.containers import is_sequence
from abele.fit.estimate import Interval
from abele.passes.recomputation import kept_whole
from abele.pipeline.cut import STAGE, placed
from abele.program import Program, Role, Slot, is_getitem, is_view, marks_of, node_argument, writes
from abele.program import memory as program_memory
from abele.program.core import node_phase
from abele.program.cut import Parts, is_copied
from abele.report.operators import moved_bytes, operations
from abele.stage.memory import BATCH, Chain, State, Unit, Value
from abele.step.replica_groups import ACCUMULATOR
from abele.trace import scopes

Node = torch.fx.Node

#: What libraries need inside, over what the operators of the program need.
_MOST = 1.25
#: How many operations of a GEMM or convolution a machine does while it moves a byte.
_OPERATIONS_PER_BYTE = 5.0


@contextlib.contextmanager
def recorded(module: torch.nn.Module) -> Generator[list[str]]:
    """Mark the operations of a capture with the number of the module call that they follow.

    Args:
        module: the model, whose forward runs once.

    Yields:
        The paths of the called modules, in the order of the calls; empty for the model itself.
    """
    named = cast("Iterator[tuple[str, torch.nn.Module]]", module.named_modules())
    entries, paths = list[str](), {child: path for path, child in named}
    inside: list[bool] = []

    def enter(child: torch.nn.Module, args: Any) -> None:
        # Once the model itself has been entered, in this thread or one that forward waits for.
        if child is module:
            inside.append(True)
        if inside and child in paths:
            scopes.mark(STAGE, len(entries))
            entries.append(paths[child])

    handle = register_module_forward_pre_hook(enter)
    try:
        yield entries
    finally:
        handle.remove()


@dataclasses.dataclass(frozen=True)
class Begin:
    """The begin of a unit, which is the call of a module; see ``Unit``."""

    name: str
    until: int


def divided(program: Program, entries: Sequence[str]) -> tuple[Begin, ...]:
    """Divide a program into units at marked module calls, and mark its operations with units.

    Calls without operations begin no unit. If a unit can begin at several calls, it is named after
    the module that is called at the fewest other places.

    Args:
        program: the program captured inside of ``recorded``.
        entries: paths of the called modules.
    """
    nodes = [node for node in program.graph.graph.nodes if node.op == "call_function"]
    calls = sorted(
        {
            marks_of(node)[STAGE]
            for node in nodes
            if STAGE in marks_of(node) and node_phase(node) == "forward" and not is_copied(node)
        }
    ) or [0]
    last = {path: call for call, path in enumerate(entries)}
    begins: list[Begin] = []
    before = 0
    for call in calls:
        candidates = entries[before : call + 1] or [""]
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


def read(programs: Sequence[Program], begins: Sequence[Begin], *, accumulates: bool) -> Chain:
    """Return the chain of units of captured programs.

    Args:
        programs: a program with marked forward operations, and others with optimizer state.
        begins: the begins of the units.
        accumulates: whether gradients are accumulated even if these programs do not.
    """
    whole, marked = kept_whole(programs[0])
    reader = _Reader(passes.run(whole), len(begins), marked)
    times, needs = reader.times(), reader.needs()
    units = [
        Unit(name=begin.name, until=begin.until, time=time, inside=inside)
        for begin, time, inside in zip(begins, times, needs, strict=True)
    ]
    state = _state_of(programs, accumulates=accumulates)
    states = (state(node, uses) for node, uses in reader.state_uses().items())
    return Chain(
        units=tuple(units),
        values=tuple(reader.values()),
        states=tuple(each for each in states if each is not None),
        training=any(node_phase(node) == "backward" for node in reader.parts),
    )


def _state_of(programs: Sequence[Program], *, accumulates: bool) -> Any:
    """Return a function that creates a ``State`` from an input or constant and its units."""
    slots = dict(zip((n.name for n in programs[0].placeholders()), programs[0].inputs, strict=True))
    sums: dict[str, int] = {}
    optimizer: dict[str, int] = {}
    for (role, name), slot in {(s.role, s.name): s for p in programs for s in p.inputs}.items():
        if role is Role.ACCUMULATOR:
            sums[name.removeprefix(ACCUMULATOR)] = _slot_bytes(slot)
        elif role is Role.OPTIMIZER_STATE:
            owner = name.rpartition(".")[0]
            optimizer[owner] = optimizer.get(owner, 0) + _slot_bytes(slot)

    def state(node: Node, uses: tuple[int, ...]) -> State | None:
        if node.op == "get_attr":
            size = node.meta["val"].nbytes
            return State(name=str(node.target), weight=size, uses=uses, together=False)
        slot = slots[node.name]
        if slot.role not in (Role.PARAMETER, Role.BUFFER):
            return None
        is_parameter, size = slot.role is Role.PARAMETER, _slot_bytes(slot)
        is_trained = is_parameter and (slot.name in optimizer or slot.mutated)
        return State(
            name=slot.name,
            weight=size,
            sums=sums.get(slot.name, size if is_trained and accumulates else 0),
            optimizer=optimizer.get(slot.name, 0),
            uses=uses,
            # What reads a buffer that another unit writes has to be on the device of that unit.
            together=is_parameter or slot.mutated,
        )

    return state


def _slot_bytes(slot: Slot) -> int:
    return torch.empty(slot.shape, dtype=slot.dtype, device="meta").nbytes


class _Reader:
    """Finds producers and readers of values in a program that is divided into units."""

    def __init__(self, program: Program, units: int, marked: frozenset[str]):
        self.program, self.count, self._marked = program, units, marked
        placements = placed(program, units)
        self.parts: Parts = {n: part for n, part in placements.items() if not is_copied(n)}
        self._readers: dict[Node, set[int]] = {}
        for node in self.parts:
            if node_phase(node) != "update" or not writes(node):
                for source in _sources(node):
                    self._readers.setdefault(source, set()).add(self.parts[node])

    def _units(self, parts: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({min(part, 2 * self.count - 1 - part) for part in parts}))

    def times(self) -> list[float]:
        """Return the modelled time of each unit, as the bytes that memory could move meanwhile."""
        times = [0.0] * self.count
        for node, part in self.parts.items():
            if node_phase(node) != "update" and not is_getitem(node):
                (unit,) = self._units([part])
                times[unit] += max(operations(node) / _OPERATIONS_PER_BYTE, moved_bytes(node))
        return times

    def needs(self) -> list[Interval]:
        """Return the bytes of each unit besides state and saved values: largest value and peak."""
        use = program_memory.of_graph(self.program)
        kept = {
            node
            for node, readers in self._readers.items()
            if self.parts.get(node, self.count) < self.count <= max(readers)
        }
        ends = ("update", None)  # gradients and results leave a unit by its end
        inside = tuple(
            piece
            for piece in use.pieces
            if piece.node in self.parts and piece.node not in kept
            if node_phase(cast("Node", use.nodes[piece.last])) not in ends
        )
        alive = dataclasses.replace(use, pieces=inside).alive()
        largest, most = [0] * self.count, [0] * self.count
        for node, peak in zip(use.nodes, alive, strict=True):
            if node in self.parts and node_phase(node) != "update":
                (unit,) = self._units([self.parts[node]])
                largest[unit] = max(largest[unit], _size_of(node))
                most[unit] = max(most[unit], largest[unit], peak)
        return [Interval(a, b, _MOST * b) for a, b in zip(largest, most, strict=True)]

    def values(self) -> Iterator[Value]:
        """Yield the forward activations of a program, and the inputs of its batch."""
        inputs = dict(zip(self.program.placeholders(), self.program.inputs, strict=True))
        for node, readers in self._readers.items():
            slot = inputs.get(node)
            part = self.parts.get(node, self.count)
            if slot.role is Role.INPUT if slot else part < self.count:
                yield Value(
                    size=_size_of(node),
                    producer=BATCH if slot else part,
                    forward=tuple(sorted(part for part in readers if part < self.count)),
                    backward=self._units(part for part in readers if part >= self.count),
                    marked=node.name in self._marked,
                )

    def state_uses(self) -> dict[Node, tuple[int, ...]]:
        """Return the units that use each input and constant, except for the batch."""
        uses: dict[Node, set[int]] = {}
        for node in self.parts:
            if node_phase(node) in ("forward", "backward") or writes(node):
                for source in _sources(node):
                    if source.op in ("placeholder", "get_attr"):
                        uses.setdefault(source, set()).add(self.parts[node])
        return {node: self._units(parts) for node, parts in uses.items()}


def _sources(node: Node) -> Iterator[Node]:
    """Yield the nodes that an operation reads, with views replaced by their bases."""
    for each in node.all_input_nodes:
        while each.op == "call_function" and is_view(each):
            each = node_argument(each, 0)
        yield each


def _size_of(node: Node) -> int:
    """Return the bytes of a node's value; 0 for views and writes, which allocate nothing."""
    value = node.meta.get("val")
    if is_view(node) or writes(node) or is_sequence(value) or value is None:
        return 0
    return value.nbytes if isinstance(value, torch.Tensor) else 8

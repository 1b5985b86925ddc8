"""Memory use of a program step by step, and the tensors that occupy it.

``aliasing`` finds the memory of a program that runs in graph order. A lowering with its own memory
plan returns the same types; see ``Lowering.memory``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from abele.program.aliasing import Liveness
from abele.program.core import Program, Role, subgraphs

#: A moment after all moments within a step.
AFTER = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """A memory allocation of a program, with its live steps.

    Attributes:
        node: the operation that allocates it; None if unknown.
        result: which of its results, 0 if it has one.
        first: the first step that uses it.
        last: the last one.
        size: bytes.
        begin: the moment within the first step at which it is allocated, from 0.
        end: the last moment within the last step at which it is live.
        inner: workspace that the operation allocates and frees.
        asked: bytes that the operation requests, if more; it does not touch the rest.
    """

    node: torch.fx.Node | None
    result: int = 0
    first: int
    last: int
    size: int
    begin: int = 0
    end: int = AFTER
    inner: bool = False
    asked: int = 0

    def is_there(self, step: int, moment: int = 0) -> bool:
        """Return whether an allocation is live at a moment of a step."""
        return (self.first, self.begin) <= (step, moment) <= (self.last, self.end)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """The memory use of a program besides its inputs.

    Attributes:
        basis: the source of these numbers, as text.
        nodes: what runs at each step.
        pieces: allocations that are live for some steps.
        reserved: bytes that stay allocated between calls.
        inside: allocations within the reserved bytes, which share memory over time.
        shared: reserved bytes that other programs use while this program does not run; None
            without a memory plan.
        bare: steps that need no memory besides these allocations.
        scratch: bytes of workspace that kernels allocate and retain.
    """

    basis: str
    nodes: tuple[torch.fx.Node | None, ...]
    pieces: tuple[Piece, ...]
    reserved: int = 0
    inside: tuple[Piece, ...] = ()
    shared: int | None = None
    bare: frozenset[int] = frozenset()
    scratch: int = 0

    def alive(self) -> list[int]:
        """Return the bytes of all live allocations at each step."""
        return self._sums((*self.pieces, *self.inside))

    def needed(self) -> list[int]:
        """Return the bytes in use at each step: reserved memory and allocations outside it."""
        return [self.reserved + each for each in self._sums(self.pieces)]

    def _sums(self, pieces: tuple[Piece, ...]) -> list[int]:
        change = [0] * (len(self.nodes) + 1)
        for each in pieces:
            change[each.first] += each.size
            change[each.last + 1] -= each.size
        alive = 0
        sums = [alive := alive + each for each in change[:-1]]
        for step, parts in _with_moments(pieces).items():
            sums[step] -= sum(each.size for each in parts) - _most(parts, step)[0]
        return sums

    def at(self, step: int) -> list[Piece]:
        """Return the allocations live at the peak moment of a step, the largest first."""
        pieces = [p for p in (*self.pieces, *self.inside) if p.first <= step <= p.last]
        _, moment = _most(pieces, step)
        alive = [each for each in pieces if each.is_there(step, moment)]
        return sorted(alive, key=lambda each: (-each.size, each.first, each.result))


def _with_moments(pieces: tuple[Piece, ...]) -> dict[int, list[Piece]]:
    """Return, by step, the allocations that are live during only part of the step."""
    steps: dict[int, list[Piece]] = {}
    for each in pieces:
        if each.begin:
            steps.setdefault(each.first, []).append(each)
        elif each.end < AFTER:
            steps.setdefault(each.last, []).append(each)
    return steps


def _most(pieces: list[Piece], step: int) -> tuple[int, int]:
    """Return the peak live bytes within a step, and the moment of the peak."""
    changes: dict[int, int] = {0: 0}
    for each in pieces:
        begin = each.begin if each.first == step else 0
        after = each.end + 1 if each.last == step else AFTER + 1
        changes[begin] = changes.get(begin, 0) + each.size
        changes[after] = changes.get(after, 0) - each.size
    most, moment, alive = 0, 0, 0
    for when, change in sorted(changes.items()):
        alive += change
        if alive > most:
            most, moment = alive, when
    return most, moment


def of_graph(program: Program) -> MemoryUse:
    """Return the memory use of a program that frees each result after its last use.

    Args:
        program: after the passes of its lowering.
    """
    liveness = Liveness(program.graph.graph)
    ranges = [
        Piece(node=r.node, result=r.result, first=r.first, last=r.last, size=r.size)
        for r in liveness.ranges
    ]
    return MemoryUse(
        basis="every result is kept until its last use",
        nodes=tuple(program.graph.graph.nodes),
        pieces=(*ranges, *_bodies(program.graph)),
    )


def _bodies(graph: torch.fx.GraphModule) -> Iterator[Piece]:
    """Yield the allocations inside the bodies of loops and branches."""
    peaks = {name: _peak(inner) for name, inner in subgraphs(graph)}
    for index, node in enumerate(graph.graph.nodes):
        inside = [peaks.get(str(each.target), 0) for each in node.all_input_nodes]
        if any(inside):
            yield Piece(node=node, result=-1, first=index, last=index, size=max(inside))


def _peak(graph: torch.fx.GraphModule) -> int:
    alive = Liveness(graph.graph).bytes_alive()
    for piece in _bodies(graph):
        alive[piece.first] += piece.size
    return max(alive)


ROLES = (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE, Role.ACCUMULATOR, Role.HYPER)


def state_bytes(programs: Sequence[Program]) -> dict[str, int]:
    """Return the bytes of each kind of state of programs; shared names count once."""
    slots = {(slot.role, slot.name): slot for program in programs for slot in program.inputs}
    total = {role.value: 0 for role in ROLES}
    for (role, _), slot in slots.items():
        if role in ROLES:
            total[role.value] += torch.empty(slot.shape, dtype=slot.dtype, device="meta").nbytes
    return total


def given_bytes(program: Program) -> dict[str, int]:
    """Return the bytes of a program's inputs by role."""
    total: Counter[str] = Counter()
    for slot in program.inputs:
        total[slot.role.value] += torch.empty(slot.shape, dtype=slot.dtype, device="meta").nbytes
    return dict(total)

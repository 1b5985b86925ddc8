"""Memory of a running program, by role and by the user's line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from abele import arena
from abele.fit.estimate import Interval, Part, Tensor
from abele.fit.workspaces import (
    LOOSE,
    RESULTS,
    SETTLED,
    Allocation,
    packed,
    returned,
    workspace,
)
from abele.program import Program, marks_of
from abele.program.memory import MemoryUse, Piece
from abele.program.printing import node_phase, user_line

#: What lies in memory that a program keeps between calls where nothing is alive there.
UNUSED = "kept by the program, unused at the peak"
WORKSPACE = "workspaces of libraries"
SCRATCH = "kept by kernels for themselves"
PACKED = "kept by libraries for themselves"
#: A larger call may come while the memory of smaller ones is kept.
_SCRATCH_AT_MOST = 2
_KEPT = "kept for backward"
_RESULTS = "results"
_OF_PHASE = {
    "forward": "used in forward only",
    "backward": "gradients",
    "update": "new values of the update",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Need:
    """Memory of a program at its peak.

    Attributes:
        operation: the operation at the peak.
        parts: bytes by role.
        tensors: buffers, the largest first.
        reserved: bytes of ``parts`` that the program keeps between calls.
        shared: bytes of ``parts`` that other programs use, too.
    """

    operation: str
    parts: tuple[Part, ...]
    tensors: tuple[Tensor, ...]
    reserved: int
    shared: int = 0


def need(program: Program, use: MemoryUse, allocation: Allocation) -> Need:
    """Return the memory of ``program`` at the step with the most expected bytes.

    Args:
        program: after the passes of its lowering.
        use: memory plan of its lowering.
        allocation: share of planned bytes that becomes memory of the process.
    """
    known = use.shared is not None or bool(
        use.bare
    )  # there, tensors inside of operators are pieces
    inside = [
        _workspace(None if step in use.bare else node, known=known)
        for step, node in enumerate(use.nodes)
    ]
    busy = [alive + spaces.expected for alive, spaces in zip(use.alive(), inside, strict=True)]
    step = max(range(len(busy)), key=busy.__getitem__)
    needed = use.needed()
    parts, tensors = _alive(use, step, allocation, known=known)
    unused = needed[step] - sum(tensor.size for tensor in tensors)
    if unused:
        parts.append(Part(role=UNUSED, size=Interval.exact(unused)))
    spaces = _above(needed, inside, needed[step])
    if use.shared is not None:
        spaces = Interval.sum((spaces, _gaps(use)))
    parts.append(Part(role=WORKSPACE, size=spaces))
    if use.scratch:
        size = Interval(use.scratch, use.scratch, _SCRATCH_AT_MOST * use.scratch)
        parts.append(Part(role=SCRATCH, size=size))
    several = [node for step, node in enumerate(use.nodes) if node and step not in use.bare]
    kept = max(map(packed, several), default=0.0)
    if kept:
        parts.append(Part(role=PACKED, size=Interval(0, 0, kept)))
    return Need(
        operation=_operation(use.nodes[step], program.name),
        parts=tuple(parts),
        tensors=tuple(tensors),
        reserved=use.reserved,
        shared=use.shared or 0,
    )


def _alive(
    use: MemoryUse, step: int, allocation: Allocation, *, known: bool
) -> tuple[list[Part], list[Tensor]]:
    """Return the live bytes at a step by role, and the buffers; the largest first."""
    planned = use.shared is not None
    if known:
        allocation = SETTLED if planned else RESULTS
    kept = set(map(id, use.inside))
    sizes: dict[str, list[Interval]] = {}
    tensors: list[Tensor] = []
    for piece in use.at(step):
        role = _role(use, piece)
        if id(piece) in kept or (planned and piece.inner):
            size = Interval.exact(piece.size)
        elif known and role == _RESULTS:
            size = returned(piece.size)
        else:
            size = allocation.of(piece.size)
        sizes.setdefault(role, []).append(size)
        tensors.append(_tensor(piece, role))
    parts = [Part(role=role, size=Interval.sum(each)) for role, each in sizes.items()]
    return sorted(parts, key=lambda part: -part.size.expected), tensors


def _gaps(use: MemoryUse) -> Interval:
    """Return what the C library retains in addition to the largest buffers of libraries."""
    loose = tuple(each for each in use.pieces if each.inner)
    most = max(dataclasses.replace(use, pieces=loose, inside=()).alive(), default=0)
    return Interval(0, LOOSE.expected * most - most, LOOSE.most * most - most)


def _above(needed: list[int], inside: list[Interval], counted: int) -> Interval:
    """Bytes of workspaces beside what is counted, at the step where both together are most."""
    expected, high = (
        max(taken + size for taken, size in zip(needed, sizes, strict=True)) - counted
        for sizes in ([each.expected for each in inside], [each.high for each in inside])
    )
    return Interval(0, expected, high)


def _workspace(node: torch.fx.Node | None, *, known: bool) -> Interval:
    if node is None:
        return Interval.exact(0)
    return workspace(node, known=known and arena.is_known(node))


def _role(use: MemoryUse, piece: Piece) -> str:
    """Return the role of a buffer, from its producer and its last reader."""
    if piece.inner:
        return WORKSPACE
    made = None if piece.node is None else node_phase(piece.node)
    last = use.nodes[piece.last]
    read = None if last is None else node_phase(last)
    if last is not None and last.op == "output":
        return _RESULTS
    if made == "forward" and read in ("backward", "update"):
        return _KEPT
    return _OF_PHASE.get(made or "", "inside the program")


def _tensor(piece: Piece, role: str) -> Tensor:
    node = piece.node
    if node is None:
        return Tensor(name="", role=role, size=piece.size, module="", line="")
    return Tensor(
        name=node.name, role=role, size=piece.size, module=_module(node), line=line_of(node)
    )


def line_of(node: torch.fx.Node) -> str:
    """``FILE:LINE in FUNCTION`` of the user's source; of forward's for a node of backward."""
    frame = user_line(node.meta.get("stack_trace"))
    if frame is None:
        file, _, rest = str(marks_of(node).get("of_line", "")).rpartition("/")
        return rest or file
    file, line, function = frame
    return f"{Path(file).name}:{line} in {function}"


def _module(node: torch.fx.Node) -> str:
    marks = marks_of(node)
    return str(marks.get("of_scope") or marks.get("scope") or "")


def _operation(node: torch.fx.Node | None, program: str) -> str:
    if node is None or node.op == "output":
        return f"the end of {program}"
    phase, line = node_phase(node) or program, line_of(node)
    return f"{node.target} in {phase}" + (f", {line}" if line else "")

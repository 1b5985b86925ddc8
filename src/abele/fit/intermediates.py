"""Memory of a running program, by role and by the user's line, and workspaces of operators."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from abele import arena
from abele.containers import is_sequence
from abele.fit.estimate import Interval, Part, Tensor
from abele.ops import adam, norm_activation, recurrent, sgd
from abele.program import Program, is_getitem, is_view, marks_of
from abele.program.core import node_phase
from abele.program.memory import MemoryUse, Piece
from abele.report.facts import line_of

aten = torch.ops.aten

#: Shares of the bytes that an operator reads and makes: expected, and at most.
_KNOWN = (0.0, 0.1)
_CONVOLUTIONS = (0.5, 2.0)
_OTHERS = (0.0, 0.25)
#: What a library packs factors of a product in, at most: a share of their bytes and those of the
#: result, and bytes for each thread.
_PRODUCTS, _PACKED = 0.5, 8 * 2**20
_SHARES: dict[Any, tuple[float, float]] = {
    aten.convolution.default: _CONVOLUTIONS,
    aten.convolution_backward.default: _CONVOLUTIONS,
    # Measured for 16 to 200 features and 64 to 256 units: 0.4 to 2.6, and 0.2 to 3.8.
    recurrent.forward: (1.5, 4),
    recurrent.backward: (2, 5),
}
#: Beside operators on elements: what reads and writes, and makes nothing else.
_NOTHING: set[Any] = {
    aten.full.default,
    aten.copy_.default,
    aten._to_copy.default,
    adam.update,
    sgd.update,
    norm_activation.forward,
    norm_activation.backward,
    norm_activation.evaluation,
    # Copies straight into the result, and sums for each channel.
    aten.cat.default,
    aten.stack.default,
    aten._native_batch_norm_legit_no_training.default,
    # Views by another name.
    aten._unsafe_view.default,
    aten.unsafe_split.Tensor,
}

_MATRICES = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}


@dataclasses.dataclass(frozen=True)
class Allocation:
    """Bytes of a process per planned byte.

    Attributes:
        expected: ratio observed for the models of ``benchmarks/fit.py``.
        most: largest ratio.
    """

    expected: float
    most: float

    def of(self, size: float) -> Interval:
        """Bytes of the process for planned ones."""
        return Interval(size, size * self.expected, size * self.most)


#: Piece by piece from the C library, which keeps the gaps that pieces of other sizes leave.
PIECES = Allocation(1.45, 2.2)
#: What libraries take so inside of operators whose tensors have planned places: a few large pieces.
LOOSE = Allocation(1.2, 1.75)
#: What is left of these beside tensors at planned places: small ones, and results.
SETTLED = Allocation(1.0, 1.3)
#: Results that torch makes for a compiled program, and what it makes inside: large ones, too.
RESULTS = Allocation(1.15, 1.4)
#: Results of calls, whose memory the caller gives back at any time: the next ones fit into it.
_RETURNED = Allocation(1.0, 1.25)
#: The same from torch's own allocator: a hole does not fit the next result of its size, so three
#: to five of them are there where two are in use.
_LEAVING_HOLES = Allocation(1.5, 2.5)
#: From so many bytes on a piece has pages of its own, which go back to the system.
_MAPPED = 32 * 2**20
#: One piece, or memory of a device whose allocator was asked for as much.
WHOLE = Allocation(1.0, 1.0)


def returned(size: float) -> Interval:
    """Bytes of the process for a result of so many bytes that lies on the host."""
    if size >= _MAPPED:
        return WHOLE.of(size)
    return (_RETURNED if arena.available() else _LEAVING_HOLES).of(size)


def workspace(node: torch.fx.Node, *, known: bool) -> Interval:
    """Bytes that an operator may need inside.

    Args:
        node: its value, and those of its arguments, are in ``meta["val"]``.
        known: the tensors that it makes inside are counted elsewhere.
    """
    if node.op != "call_function" or is_view(node) or is_getitem(node):
        return Interval.exact(0)
    if node.target in _NOTHING or _is_by_element(node) or _pools_dense(node):
        return Interval.exact(0)
    if _packs(node):
        # In 16 bits torch multiplies by other code, which gives back what it takes.
        return Interval(0, 0, _most_packed(node) if _is_narrow(node) else 0)
    expected, most = _KNOWN if known else _SHARES.get(node.target, _OTHERS)
    size = _touched(node)
    return Interval(0, expected * size, most * size)


def packed(node: torch.fx.Node) -> float:
    """Bytes at most that a library packs factors of a product in, and keeps for the next one."""
    return _most_packed(node) if _packs(node) and not _is_narrow(node) else 0.0


def _packs(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and node.target in _MATRICES


def _is_narrow(node: torch.fx.Node) -> bool:
    return node.meta["val"].dtype in (torch.float16, torch.bfloat16)


def _most_packed(node: torch.fx.Node) -> float:
    return min(_PRODUCTS * _touched(node), torch.get_num_threads() * _PACKED)


def _touched(node: torch.fx.Node) -> int:
    return sum(_bytes(each.meta.get("val")) for each in (node, *node.all_input_nodes))


def _is_by_element(node: torch.fx.Node) -> bool:
    """Return whether an operator is pointwise on one dtype; torch converts others in a copy."""
    if torch.Tag.pointwise not in getattr(node.target, "tags", ()):
        return False
    values = (each.meta.get("val") for each in (node, *node.all_input_nodes))
    large = [each for each in values if isinstance(each, torch.Tensor) and each.dim()]
    return len({each.dtype for each in large} - {torch.bool}) <= 1


def _pools_dense(node: torch.fx.Node) -> bool:
    """Return whether a max pool reads dense activations; others are copied first."""
    if node.target is not aten.max_pool2d_with_indices.default:
        return False
    image = node.all_input_nodes[0].meta["val"]
    return image.is_contiguous() or image.is_contiguous(memory_format=torch.channels_last)


def _bytes(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(_bytes, value)) if is_sequence(value) else 0


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
    return workspace(node, known=known and arena.is_measured(node))


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


def _module(node: torch.fx.Node) -> str:
    marks = marks_of(node)
    return str(marks.get("of_scope") or marks.get("scope") or "")


def _operation(node: torch.fx.Node | None, program: str) -> str:
    if node is None or node.op == "output":
        return f"the end of {program}"
    phase, line = node_phase(node) or program, line_of(node)
    return f"{node.target} in {phase}" + (f", {line}" if line else "")

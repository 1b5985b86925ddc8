"""Workspaces inside of operators, which no graph shows, as a stated band.

Libraries pack matrices and keep sums per thread. How much that takes is theirs to decide, so it is
a band: nothing at least, a share of what the operator reads and makes at most. What operators make
inside as tensors is known better where ``arena.inner`` says it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from abele import arena
from abele.containers import is_sequence
from abele.fit.estimate import Interval
from abele.ops import adam, norm_activation, recurrent, sgd
from abele.program import is_getitem, is_view

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

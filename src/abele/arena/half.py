"""What torch makes inside where numbers of 16 bits are added up: the same in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from abele.arena.calls import Calls, value

aten = torch.ops.aten

_NARROW = (torch.float16, torch.bfloat16)


def is_narrow(tensor: torch.Tensor) -> bool:
    """Whether its numbers have 16 bits."""
    return tensor.dtype in _NARROW


def widened(tensor: torch.Tensor) -> int:
    """Bytes of the same numbers in float32."""
    return 2 * tensor.nbytes


def widens_sum(tensor: torch.Tensor, dimensions: Sequence[int]) -> bool:
    """Whether a sum is one of float32: where what is added up does not lie in one row.

    Args:
        tensor: dense, in the order of its dimensions.
        dimensions: over which it is summed up.
    """
    added = {each % max(1, tensor.dim()) for each in dimensions}  # torch takes 0 and -1 of a number
    rows, before = 0, False
    for axis, size in enumerate(tensor.shape):
        if size > 1:
            rows += axis in added and not before
            before = axis in added
    return is_narrow(tensor) and rows > 1


def _sum(node: torch.fx.Node, channels_last: bool) -> Calls | None:
    del channels_last
    image, dimensions = value(node, 0), cast("list[int]", node.args[1])
    return _widened(image) if dimensions and widens_sum(image, dimensions) else None


def _mean(node: torch.fx.Node, channels_last: bool) -> Calls | None:
    del channels_last
    image = value(node, 0)
    return _widened(image) if is_narrow(image) else None


def _widened(tensor: torch.Tensor) -> Calls:
    calls = Calls()
    made = calls.make(widened(tensor))
    calls.free(made)
    calls.result(0)
    return calls


def _product(node: torch.fx.Node, channels_last: bool) -> Calls | None:
    """A product whose left factor alone is transposed is added up in float32, one matrix a time."""
    del channels_last
    left = 1 if node.target is aten.addmm.default else 0
    one, other = value(node, left), value(node, left + 1)
    if one.dtype is not torch.float16 or not _is_transposed(one) or _is_transposed(other):
        return None
    calls, result = Calls(), node.meta["val"]
    calls.result(0)
    made = calls.make(2 * result.shape[-2] * result.shape[-1] * result.element_size())
    calls.elsewhere.add(made)
    calls.free(made)
    return calls


def _is_transposed(matrix: torch.Tensor) -> bool:
    return matrix.stride(-2) == 1 and matrix.stride(-1) != 1


RULES: dict[Any, Callable[[torch.fx.Node, bool], Calls | None]] = {
    aten.sum.dim_IntList: _sum,
    aten.mean.dim: _mean,
    aten.mean.default: _mean,
    aten.mm.default: _product,
    aten.addmm.default: _product,
    aten.bmm.default: _product,
}

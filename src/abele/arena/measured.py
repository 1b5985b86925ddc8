"""Workspace memory of operators, which no graph shows: measured by running each operator.

Workspaces depend on processor, library version, layouts and number of threads, so an operator is
run alone, on zeros, while the allocator records; results are cached per process. Running programs
do not need these estimates: their offsets are replanned from the first run's allocations.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterator, Sequence
from typing import Any

import torch

from abele import _torch, systems
from abele.arena.places import Allocation
from abele.arena.running import available, recorded
from abele.containers import is_sequence
from abele.ops import lstm
from abele.ops.half_products import in_float32, is_half_product
from abele.program.memory import MemoryUse, Piece

aten = torch.ops.aten

_CONVOLUTIONS = {
    aten.convolution.default,
    aten.convolution_backward.default,
    _torch.convolution_with_activation(),
}
_OPERATORS = {
    *_CONVOLUTIONS,
    aten.mse_loss.default,
    aten.upsample_bilinear2d.default,
    aten.native_batch_norm_backward.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    lstm.forward,
    lstm.backward,
}
#: Operators with a workspace in half precision only: they accumulate in float32.
_WIDENING = {
    aten.sum.dim_IntList,
    aten.mean.dim,
    aten.mean.default,
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
}
_NARROW = (torch.float16, torch.bfloat16)
#: Convolutions of larger batches are measured with these, and sizes are extrapolated: algorithms
#: are other ones below 16 images alone.
_BATCHES = 16, 32
#: Maximum size of a measured operator's arguments, as a share of the machine's memory.
_SHARE = 1 / 8


@dataclasses.dataclass(frozen=True)
class _Inside:
    """Allocations inside an operator, in allocation order.

    Attributes:
        temporary: tensors that it frees again.
        results: allocations of its results, by their index.
    """

    temporary: tuple[Allocation, ...]
    results: dict[int, Allocation]


_measured: dict[Any, _Inside | None] = {}


def with_inner(
    use: MemoryUse,
    others: Container[torch.fx.Node] = (),
    channels_last: Container[torch.fx.Node] = (),
) -> MemoryUse:
    """Add the workspace tensors of operators to a memory estimate.

    Args:
        use: an estimate with one piece per tensor.
        others: nodes that torch does not compute.
        channels_last: nodes that read channels-last images, whatever their fake tensors say.
    """
    pieces: list[Piece] = []
    results: dict[tuple[torch.fx.Node | None, int], Allocation] = {}
    for step, node in enumerate(use.nodes):
        if node is None or node in others:
            continue
        inside = _inside(node, node in channels_last)
        if inside is None:
            continue
        results |= {(node, index): each for index, each in inside.results.items()}
        pieces += _temporary(inside, node, step)
    made = [_moved(each, results.get((each.node, each.result))) for each in use.pieces]
    return dataclasses.replace(use, pieces=(*made, *pieces))


def is_measured(node: torch.fx.Node) -> bool:
    """Return whether ``with_inner`` knows the workspace of a node."""
    if node.target not in _OPERATORS or not available():
        return False
    return _is_small(node) or _can_be_extrapolated(node)


def _moved(piece: Piece, allocation: Allocation | None) -> Piece:
    if allocation is None:
        return piece
    asked = allocation.size if allocation.size > piece.size else 0
    return dataclasses.replace(piece, begin=allocation.begin, asked=asked)


def _temporary(inside: _Inside, node: torch.fx.Node | None, step: int) -> Iterator[Piece]:
    for each in inside.temporary:
        yield Piece(
            node=node,
            first=step,
            last=step,
            size=each.size,
            begin=each.begin,
            end=each.end,
            inner=True,
        )


def _inside(node: torch.fx.Node, channels_last: bool) -> _Inside | None:
    """Return the allocations inside a node's operator; None if none or unknown."""
    if node.op != "call_function" or not (node.target in _OPERATORS or _widens(node)):
        return None
    values = [each.meta.get("val") for each in node.all_input_nodes]
    if not all(map(_has_memory, values)):
        return None
    described = [_described(each) for each in (*node.args, *node.kwargs.items())]
    key = node.target, str(described), channels_last, torch.get_num_threads()
    if key not in _measured:
        if not available():
            return None
        try:
            _measured[key] = _measure(node, channels_last)
        except RuntimeError:  # not on this processor, or no memory: the estimate goes without
            _measured[key] = None
    return _measured[key]


def _has_memory(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 0 and value.device.type == "cpu"


def _widens(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return node.target in _WIDENING and isinstance(value, torch.Tensor) and value.dtype in _NARROW


def _described(argument: Any) -> Any:
    if not isinstance(argument, torch.fx.Node):
        return argument
    value = argument.meta["val"]
    return tuple(value.shape), value.stride(), value.dtype


def _measure(node: torch.fx.Node, channels_last: bool) -> _Inside | None:
    if _can_be_extrapolated(node):
        batch = _value(node, 0).shape[0]
        few, more = (_run(node, channels_last, each) for each in _BATCHES)
        extrapolated = _extrapolated(few, more, batch)
        if extrapolated is not None:
            return extrapolated
    return _run(node, channels_last, None) if _is_small(node) else None


def _can_be_extrapolated(node: torch.fx.Node) -> bool:
    return node.target in _CONVOLUTIONS and _value(node, 0).shape[0] > _BATCHES[1]


def _is_small(node: torch.fx.Node) -> bool:
    touched = sum(each.meta["val"].nbytes for each in node.all_input_nodes)
    return touched <= _SHARE * (systems.memory() or math.inf)


def _extrapolated(few: _Inside, more: _Inside, batch: int) -> _Inside | None:
    """Extrapolate an operator's allocations to a larger batch; None if their number varies."""
    alike = len(few.temporary) == len(more.temporary) and few.results.keys() == more.results.keys()
    if not alike:
        return None

    def larger(one: Allocation, other: Allocation) -> Allocation:
        per_image = (other.size - one.size) / (_BATCHES[1] - _BATCHES[0])
        size = other.size + math.ceil(per_image * (batch - _BATCHES[1]))
        return dataclasses.replace(other, size=size)

    return _Inside(
        tuple(map(larger, few.temporary, more.temporary)),
        {index: larger(few.results[index], each) for index, each in more.results.items()},
    )


def _run(node: torch.fx.Node, channels_last: bool, batch: int | None) -> _Inside:
    """Run the operator of a node on zeros and record its allocations, for a given batch size."""
    images = 2 if node.target is aten.convolution_backward.default else 1
    arguments = [
        _zeros(each.meta["val"], channels_last, batch if index < images else None)
        if isinstance(each, torch.fx.Node)
        else each
        for index, each in enumerate(node.args)
    ]
    target: Any = node.target
    if is_half_product(node):
        target = in_float32(target)
    with torch.no_grad(), recorded() as allocations:
        value = target(*arguments, **node.kwargs)
    values: Sequence[Any] = value if is_sequence(value) else [value]
    at = {
        each.untyped_storage().data_ptr(): index
        for index, each in enumerate(values)
        if isinstance(each, torch.Tensor)
    }
    freed = tuple(each for each in allocations if each.end >= 0)
    kept = [each for each in allocations if each.end < 0 and each.address in at]
    return _Inside(freed, {at[each.address]: each for each in kept})


def _zeros(value: torch.Tensor, channels_last: bool, batch: int | None) -> torch.Tensor:
    """Return zeros with the shape and strides of a fake tensor."""
    shape, strides = [*value.shape], value.stride()
    if batch is not None:
        shape[0] = batch
    count = 1 + sum((side - 1) * step for side, step in zip(shape, strides, strict=True))
    zeros = torch.zeros(count, dtype=value.dtype).as_strided(shape, strides)
    if channels_last and value.dim() == 4:
        return zeros.contiguous(memory_format=torch.channels_last)
    return zeros


def _value(node: torch.fx.Node, index: int) -> torch.Tensor:
    argument = node.args[index]
    assert isinstance(argument, torch.fx.Node)
    return argument.meta["val"]

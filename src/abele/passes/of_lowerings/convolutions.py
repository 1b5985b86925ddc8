"""Convolutions in other types, with few channels, and before upsampling."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from abele import _torch
from abele.containers import is_sequence
from abele.ops import few_channel_conv
from abele.passes._edit import editable, finished, substitute
from abele.program import Program, is_getitem, node_argument
from abele.program.aliasing import erase_dead_nodes, stays_in_program
from abele.trace.fake_results import stated_results

aten = torch.ops.aten

_Node = torch.fx.Node
_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
_TENSORS = 3  # of the first arguments of both


def half_convolutions(program: Program) -> Program:
    """Compute convolutions of half numbers in float32, on processors where that is faster."""
    if not is_faster() or not any(map(_is_one, program.graph.graph.nodes)):
        return program
    graph = editable(program)
    for node in filter(_is_one, list(graph.graph.nodes)):
        _widen(node)
    return finished(program, graph)


@functools.cache
def is_faster() -> bool:
    """Return whether oneDNN would compute half convolutions on this processor."""
    return _torch.computes_half_convolutions()


def _is_one(node: _Node) -> bool:
    """Return whether a node is a convolution in half precision, or its backward."""
    if node.target not in _CONVOLUTIONS:
        return False
    return cast("_Node", node.args[0]).meta["val"].dtype is torch.float16


def _widen(node: _Node) -> None:
    """Cast what a node reads and makes."""
    arguments: tuple[Any, ...] = node.args
    with node.graph.inserting_before(node):
        wide = [each and _cast(each, torch.float32, like=node) for each in arguments[:_TENSORS]]
    node.args = (*wide, *arguments[_TENSORS:])
    made = [each for each in list(node.users) if is_getitem(each)]
    for each in reversed(made):
        node.append(each)  # all results are kept until the last of them is taken
    node.meta["val"] = _in_type(node.meta["val"], torch.float32)
    last = made[-1] if made else node
    for each in reversed(made or [node]):
        each.meta["val"] = _in_type(each.meta["val"], torch.float32)
        users = dict(each.users)
        with node.graph.inserting_after(last):
            narrow = _cast(each, torch.float16, like=each)
        for user in users:
            user.replace_input_with(each, narrow)


def _cast(node: _Node, dtype: torch.dtype, *, like: _Node) -> _Node:
    """Add a node that casts ``node`` to a type; ``like`` provides its source line and phase."""
    cast_node = node.graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
    cast_node.meta = {**like.meta, "val": _in_type(node.meta["val"], dtype)}
    return cast_node


def _in_type(value: Any, dtype: torch.dtype) -> Any:
    """Return a tensor without data, or several of them, in another type."""
    if is_sequence(value):
        return tuple(_in_type(each, dtype) for each in value)
    return value if value is None else value.to(dtype)


# Fewer samples are computed one by one if rows and columns advance by one, which pays for images of
# any size; else most lanes of a register idle, and only few channels are worth that.
_LEAST_BATCH = 8
_MOST_CHANNELS_OF_ANY_BATCH = 16
# Where both channel counts divide by this the library is as good, and soon better; with few samples
# not before it has so many.
_LIBRARY_BLOCK = 16
_LIBRARY_CHANNELS = 32
_MOST_CHANNELS = 64
# Larger images leave the second-level cache when 16 samples are kept side by side.
_MOST_PIXELS_PER_SAMPLE = 65536


def replaced(program: Program, is_ours: Callable[[torch.fx.Node], bool]) -> Program:
    """Replace convolutions by our kernels.

    Args:
        program: any.
        is_ours: says which, of convolutions and their backwards; ``why_not`` has to be None.
    """
    graph = editable(program)
    for node in graph.graph.nodes:
        if node.target is aten.convolution.default and is_ours(node):
            substitute(node, few_channel_conv.forward, _arguments(node))
        elif node.target is aten.convolution_backward.default and is_ours(node):
            substitute(node, few_channel_conv.backward, _arguments(node))
    return finished(program, graph)


def why_not(node: torch.fx.Node) -> str | None:
    """Return why the library computes a convolution or its backward; ``None`` if our kernels do.

    Our kernels support those and are faster at them. A gradient that is not contiguous is copied.
    """
    arguments: tuple[Any, ...] = node.args
    if node.target is aten.convolution.default:
        x, weight, _, stride, padding, dilation, transposed, _, groups = arguments
        result = node
    else:
        result, x, weight, _, stride, padding, dilation, transposed, _, groups, _ = arguments
    values = [each.meta["val"] for each in (x, weight, result)]
    if any(each != 1 for each in dilation) or transposed or groups != 1:
        return "the library's: our kernels know no dilation, transposition or groups"
    in_order = values if node.target is aten.convolution.default else values[:2]
    if not all(map(_plain, values)) or not all(value.is_contiguous() for value in in_order):
        return "the library's: our kernels are for contiguous images in float32"
    where = _library_gains(*values, one_by_one=_one_by_one(values[1], stride, padding))
    return where and f"the library's: it is faster with {where}"


def _plain(value: torch.Tensor) -> bool:
    return value.dim() == 4 and value.numel() > 0 and value.dtype is torch.float32


def _one_by_one(weight: torch.Tensor, stride: Sequence[int], padding: Sequence[int]) -> bool:
    """Return whether there is a kernel that computes samples one by one."""
    borders = zip(_pair(padding), weight.shape[2:], strict=True)
    return all(each == 1 for each in stride) and all(pad < kernel for pad, kernel in borders)


def _library_gains(
    x: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, *, one_by_one: bool
) -> str | None:
    """Return the reason why oneDNN is as fast or faster; None if it is slower."""
    channels, few = weight.shape[:2], x.shape[0] < _LEAST_BATCH
    most, blocks = max(channels), all(count % _LIBRARY_BLOCK == 0 for count in channels)
    if one_by_one and few:
        limit = _LIBRARY_CHANNELS if blocks else _MOST_CHANNELS
        return f"more than {limit} channels" if most > limit else None
    if few and most >= _MOST_CHANNELS_OF_ANY_BATCH:
        return f"fewer than {_LEAST_BATCH} samples"
    if blocks:
        return f"numbers of channels that divide by {_LIBRARY_BLOCK}"
    if most > _MOST_CHANNELS:
        return f"more than {_MOST_CHANNELS} channels"
    if max(x[0].numel(), result[0].numel()) > _MOST_PIXELS_PER_SAMPLE:
        return f"samples of more than {_MOST_PIXELS_PER_SAMPLE:,} numbers"
    return None


def _arguments(node: torch.fx.Node) -> tuple[Any, ...]:
    arguments: tuple[Any, ...] = node.args
    if node.target is aten.convolution.default:
        x, weight, bias, stride, padding, *_ = arguments
        return x, weight, bias, _pair(stride), _pair(padding)
    grad, x, weight, _, stride, padding, *_, mask = arguments
    return grad, x, weight, _pair(stride), _pair(padding), list(mask)


def _pair(values: Sequence[int]) -> list[int]:
    return list(values) * 2 if len(values) == 1 else list(values)


_BACKWARD: dict[Any, Any] = {
    aten.upsample_bilinear2d.default: aten.upsample_bilinear2d_backward.default,
    aten.upsample_nearest2d.default: aten.upsample_nearest2d_backward.default,
}


@dataclasses.dataclass(frozen=True)
class _Pair:
    """An upsampling, the convolution that reads it, and the backward nodes of both."""

    upsample: _Node
    convolution: _Node
    convolution_backward: _Node | None
    upsample_backward: _Node | None


def pointwise_before_upsampling(program: Program) -> Program:
    """Exchange upsamplings and the 1x1 convolutions that alone read them."""
    graph = editable(program)
    for node in list(graph.graph.nodes):
        pair = _match(node) if node.target in _BACKWARD else None
        if pair is not None:
            _exchange(pair)
    erase_dead_nodes(graph, stays_in_program)
    return finished(program, graph)


def _match(upsample: _Node) -> _Pair | None:
    users = list(upsample.users)
    forward = [user for user in users if user.target is aten.convolution.default]
    backward = [user for user in users if user.target is aten.convolution_backward.default]
    if len(forward) != 1 or len(backward) > 1 or len(users) > len(forward) + len(backward):
        return None
    convolution = forward[0]
    if convolution.args[0] is not upsample or not _pays(upsample, convolution):
        return None
    if not backward:
        return _Pair(upsample, convolution, None, None)
    if backward[0].args[1:3] != convolution.args[:2]:
        return None
    gradient = next((u for u in backward[0].users if is_getitem(u) and u.args[1] == 0), None)
    if gradient is None:
        return _Pair(upsample, convolution, backward[0], None)
    users = list(gradient.users)
    if len(users) != 1 or users[0].target is not _BACKWARD[upsample.target]:
        return None
    return _Pair(upsample, convolution, backward[0], users[0])


def _pays(upsample: _Node, convolution: _Node) -> bool:
    """Return whether the convolution is pointwise, and mixing first moves fewer numbers."""
    arguments: tuple[Any, ...] = convolution.args
    _, weight, _, stride, padding, dilation, transposed, _, groups = arguments
    outputs, inputs, *kernel = weight.meta["val"].shape
    ones = {*stride, *dilation, *kernel, groups} == {1}
    grows = node_argument(upsample, 0).meta["val"].numel() <= upsample.meta["val"].numel()
    return ones and not transposed and set(padding) == {0} and outputs <= inputs and grows


def _exchange(pair: _Pair) -> None:
    convolution, upsample = pair.convolution, pair.upsample
    with convolution.graph.inserting_before(convolution):
        small = _call(convolution, (upsample.args[0], *convolution.args[1:]))
        result = _call(upsample, (small, *upsample.args[1:]))
    result.meta = {**upsample.meta, "val": convolution.meta["val"]}
    convolution.replace_all_uses_with(result)
    if pair.convolution_backward is not None:
        _exchange_backward(pair, pair.convolution_backward, small)


def _exchange_backward(pair: _Pair, backward: _Node, small: _Node) -> None:
    # The size of the small image with the channels of the convolution's result.
    sizes = list(small.meta["val"].shape)
    _, output_size, *settings = pair.upsample.args
    target = _BACKWARD[pair.upsample.target]
    with backward.graph.inserting_before(backward):
        grad = backward.graph.call_function(
            target, (backward.args[0], output_size, sizes, *settings)
        )
        grad.meta = {**(pair.upsample_backward or backward).meta, "val": small.meta["val"]}
        new = _call(backward, (grad, pair.upsample.args[0], *backward.args[2:]))
        for user in [user for user in backward.users if is_getitem(user)]:
            picked = backward.graph.call_function(operator.getitem, (new, user.args[1]))
            old = pair.upsample_backward if user.args[1] == 0 else user
            assert old is not None
            picked.meta = dict(old.meta)
            old.replace_all_uses_with(picked)


def _call(like: _Node, arguments: tuple[Any, ...]) -> _Node:
    """Return the same operation on other arguments."""
    node = like.graph.call_function(like.target, arguments)  # type: ignore[arg-type]
    node.meta = dict(like.meta)
    values = [each.meta["val"] if isinstance(each, _Node) else each for each in arguments]
    with values[0].fake_mode:
        node.meta["val"] = stated_results(like.target, values)  # type: ignore[arg-type]
    return node

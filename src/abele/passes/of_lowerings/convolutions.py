"""Convolution rewrites: bfloat16 patches as GEMMs, and 1x1 convolutions before upsampling."""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any

import torch

from abele.ops.half_products import is_bfloat16_product
from abele.passes._edit import editable, finished, inserted
from abele.program import Program, is_getitem, node_argument
from abele.program.aliasing import erase_dead_nodes, stays_in_program
from abele.trace.fake_results import stated_results

aten = torch.ops.aten

_Node = torch.fx.Node
_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
_TENSORS = 3  # of the first arguments of both


_BACKWARD: dict[Any, Any] = {
    aten.upsample_bilinear2d.default: aten.upsample_bilinear2d_backward.default,
    aten.upsample_nearest2d.default: aten.upsample_nearest2d_backward.default,
}


@dataclasses.dataclass(frozen=True)
class _Pair:
    """An upsampling and the convolution that reads it, with the backward nodes of both."""

    upsample: _Node
    convolution: _Node
    convolution_backward: _Node | None
    upsample_backward: _Node | None


def pointwise_before_upsampling(program: Program) -> Program:
    """Swap upsamplings with the 1x1 convolutions that are their only readers."""
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
    """Return whether a convolution is pointwise, without more output than input channels."""
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
    """Create a node that applies a node's operation to other arguments."""
    node = like.graph.call_function(like.target, arguments)  # type: ignore[arg-type]
    node.meta = dict(like.meta)
    values = [each.meta["val"] if isinstance(each, _Node) else each for each in arguments]
    with values[0].fake_mode:
        node.meta["val"] = stated_results(like.target, values)  # type: ignore[arg-type]
    return node


def patches_as_products(program: Program) -> Program:
    """Compute bfloat16 convolutions of patches side by side, and their gradients, as GEMMs.

    oneDNN's kernel for the few channels of an image takes twice as long.
    """
    graph, patches = editable(program), dict[Any, _Node]()
    for node in list(graph.graph.nodes):
        backward = node.target is aten.convolution_backward.default
        if node.target in _CONVOLUTIONS and _is_of_patches(node, *node.args[backward:][:2]):
            (_of_patches_backward if backward else _of_patches)(node, patches)
    erase_dead_nodes(graph, stays_in_program)
    return finished(program, graph)


def _is_of_patches(node: _Node, x: Any, weight: Any) -> bool:
    """Return whether a convolution, or its weight's gradient, is a GEMM of an image's patches."""
    backward = node.target is aten.convolution_backward.default
    given: tuple[Any, ...] = node.args
    stride, padding, dilation, transposed, _, _ = given[4:10] if backward else given[3:]
    sizes, kernel = x.meta["val"].shape[2:], list(weight.meta["val"].shape[2:])
    whole = len(kernel) == 2 and all(n % k == 0 for n, k in zip(sizes, kernel, strict=True))
    plain = not any(padding) and set(dilation) == {1} and not transposed
    if not (whole and plain and list(stride) == kernel and is_bfloat16_product(node)):
        return False
    return math.prod(kernel) > 1 and not (backward and given[10][0])


def _of_patches(node: _Node, patches: dict[Any, _Node]) -> None:
    x, weight, bias, *_ = node.args
    images, outputs, *edges = map(int, node.meta["val"].shape)
    rows = _patches(node, x, weight, patches)
    matrix = inserted(node, aten.view.default, weight, [outputs, -1])
    turned = inserted(node, aten.t.default, matrix)
    factors = rows, turned
    result = (
        inserted(node, aten.mm.default, *factors)
        if bias is None
        else inserted(node, aten.addmm.default, bias, *factors)
    )
    last = inserted(node, aten.view.default, result, [images, *edges, outputs])
    node.replace_all_uses_with(inserted(node, aten.permute.default, last, [0, 3, 1, 2]))


def _of_patches_backward(node: _Node, patches: dict[Any, _Node]) -> None:
    grad, x, weight, *_ = node.args
    shape = [int(size) for size in weight.meta["val"].shape]  # type: ignore[union-attr]
    rows = _patches(node, x, weight, patches)
    last = inserted(node, aten.permute.default, grad, [0, 2, 3, 1])
    columns = inserted(node, aten.view.default, _copied(node, last), [-1, shape[0]])
    for user in list(node.users):
        if user.args[1] == 1:
            product = inserted(node, aten.mm.default, inserted(node, aten.t.default, columns), rows)
            user.replace_all_uses_with(inserted(node, aten.view.default, product, shape))
        elif user.args[1] == 2:
            user.replace_all_uses_with(inserted(node, aten.sum.dim_IntList, columns, [0]))


def _patches(node: _Node, x: Any, weight: Any, known: dict[Any, _Node]) -> _Node:
    """Return the patches of images as rows of a matrix, shared with the gradient."""
    (images, channels, height, width), (_, _, high, wide) = (
        each.meta["val"].shape for each in (x, weight)
    )
    key = x, high, wide
    if key not in known:
        parts = [images, channels, height // high, high, width // wide, wide]
        cut = inserted(node, aten.view.default, _copied(node, x), parts)
        order = inserted(node, aten.permute.default, cut, [0, 2, 4, 1, 3, 5])
        sizes = [parts[0] * parts[2] * parts[4], channels * high * wide]
        known[key] = inserted(node, aten.view.default, _copied(node, order), sizes)
    return known[key]


def _copied(node: _Node, value: Any) -> _Node:
    """Return a value or, if its elements are not in order, a contiguous copy."""
    if value.meta["val"].is_contiguous():
        return value
    return inserted(node, aten.clone.default, value, memory_format=torch.contiguous_format)

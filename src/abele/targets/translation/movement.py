"""Translation of operators that move elements (cat, stack, pad, repeat) to loops."""

from __future__ import annotations

from typing import Any

import torch

from abele.targets.translation.places import Kind, Place, contiguous_stride


def arguments(node: torch.fx.Node) -> tuple[Any, ...]:
    """Return the positional arguments of a node: nodes, numbers, lists of them."""
    return node.args


def options(node: torch.fx.Node) -> dict[str, Any]:
    """Return the keyword arguments of a node."""
    return node.kwargs


def dims_of(node: torch.fx.Node, at: int = 1) -> set[int]:
    """Return the dimensions that a reduction operator has as an argument; by default all."""
    rank = arguments(node)[0].meta["val"].dim()
    dims = arguments(node)[at] if len(arguments(node)) > at else None
    dims = [dims] if isinstance(dims, int) else dims
    everything = set(range(rank))  # of a number there is none, though torch takes 0 and -1
    return {int(d) % rank for d in dims} if dims and rank else everything


def sliced(place: Place, dim: int, start: int, size: int, step: int) -> Place:
    """Return a strided slice of ``size`` elements along a dimension of a view."""
    shape, stride = list(place.shape), list(place.stride)
    offset = place.offset + start * stride[dim]
    shape[dim], stride[dim] = size, stride[dim] * step
    return Place(place.buffer, tuple(shape), tuple(stride), offset)


def selected(place: Place, dim: int, index: int) -> Place:
    """Return a view at one index of a dimension, which is removed."""
    shape, stride = list(place.shape), list(place.stride)
    offset = place.offset + index * stride[dim]
    del shape[dim], stride[dim]
    return Place(place.buffer, tuple(shape), tuple(stride), offset)


def turned(matrix: Place) -> Place:
    """Return the transposed view of a matrix."""
    return Place(matrix.buffer, matrix.shape[::-1], matrix.stride[::-1], matrix.offset)


def store(translator: Any, value: Place, target: Place) -> None:
    """Add an operation that copies a tensor to another view, converted and broadcast."""
    if target.size:
        translator.pointwise([value], "{0}".format, target)


def fill(translator: Any, target: Place) -> None:
    """Add an operation that fills a view with zeros."""
    translator.pointwise([0], "{0}".format, target)


aten = torch.ops.aten


def cat(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.cat``, without copies where tensors are adjacent in memory."""
    if options(node):
        return None
    places, dim, together = _joined(translator, node)
    if together is not None:
        return together
    result, start = translator.new_like(node), 0
    for place in places:
        if place.shape == (0,):  # torch lets an empty vector pass
            continue
        if len(place.shape) != len(result.shape) or place.dtype is not result.dtype:
            return None
    for place in places:
        if place.size:
            target = sliced(result, dim, start, place.shape[dim], 1)
            if not translator.moved(place, target):
                store(translator, place, target)
            start += place.shape[dim]
    return result


def _joined(translator: Any, node: torch.fx.Node) -> tuple[list[Place], int, Place | None]:
    """Return the tensors that a node joins, along which dimension, and the result if adjacent."""
    tensors, dim, *_ = *arguments(node), 0
    places, value = [translator.places[each] for each in tensors], node.meta["val"]
    return places, dim % value.dim(), _neighbours(places, value) if dim == 0 else None


def stack(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.stack``, without copies where tensors are adjacent in memory."""
    places, dim, together = _joined(translator, node)
    if together is not None:
        return together
    result = translator.new_like(node)
    for index, place in enumerate(places):
        target = selected(result, dim, index)
        if not translator.moved(place, target):
            store(translator, place, target)
    return result


def _neighbours(places: list[Place], value: torch.Tensor) -> Place | None:
    """Return a view of tensors that are adjacent in memory; None if they are not."""
    first = places[0].resolved()
    if first.buffer.kind is not Kind.ARENA or not value.is_contiguous():
        return None
    offset = first.offset
    for place in map(Place.resolved, places):
        if place.buffer is not first.buffer or place.offset != offset or not place.contiguous:
            return None
        offset += place.size
    return Place(first.buffer, tuple(value.shape), contiguous_stride(value.shape), first.offset)


def select_backward(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.select_backward``: zeros, and the gradient in one slice."""
    grad, _, dim, index = arguments(node)
    result = translator.new_like(node)
    dim %= len(result.shape)
    fill(translator, result)
    target = selected(result, dim, index % result.shape[dim])
    store(translator, translator.places[grad], target)
    return result


def slice_backward(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.slice_backward``: zeros, and the gradient in strided slices."""
    grad, _, dim, start, _, step = arguments(node)
    place, result = translator.places[grad], translator.new_like(node)
    dim %= len(result.shape)
    size = result.shape[dim]
    start = min(max(start + size if start < 0 else start, 0), size)
    fill(translator, result)
    store(translator, place, sliced(result, dim, start, place.shape[dim], step))
    return result


def repeat(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.repeat`` to a copy from a view with strides of 0."""
    x, times = translator.places[arguments(node)[0]], arguments(node)[1]
    missing = len(times) - len(x.shape)
    sizes, steps = (1,) * missing + x.shape, (0,) * missing + x.stride
    shape = tuple(n for pair in zip(times, sizes, strict=True) for n in pair)
    stride = tuple(n for step in steps for n in (0, step))
    result = translator.new(tuple(node.meta["val"].shape), x.dtype)
    target = Place(result.buffer, shape, contiguous_stride(shape))
    store(translator, Place(x.buffer, shape, stride, x.offset), target)
    return result


def pad(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.constant_pad_nd``; negative widths crop."""
    x, widths, *value = arguments(node)
    place = translator.places[x]
    result = target = translator.new_like(node)
    for d in range(len(widths) // 2):
        dim, (before, after) = len(place.shape) - 1 - d, widths[2 * d : 2 * d + 2]
        size = place.shape[dim] + min(before, 0) + min(after, 0)
        place = sliced(place, dim, max(-before, 0), size, 1)
        target = sliced(target, dim, max(before, 0), size, 1)
    if any(width > 0 for width in widths):
        translator.pointwise([value[0] if value else 0], "{0}".format, result)
    store(translator, place, target)
    return result


def log_sigmoid(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.log_sigmoid_forward``: the result and its saved buffer."""
    x = translator.places[arguments(node)[0]]
    if not x.dtype.is_floating_point:
        return None
    results = [translator.new(x.shape, x.dtype) for _ in (0, 1)]
    translator.pointwise([x], "abele::log_sigmoid({0})".format, results[0])
    translator.pointwise([x], "abele::exp(-std::fabs({0}))".format, results[1])
    return results


MOVES = {
    aten.log_sigmoid_forward.default: log_sigmoid,
    aten.cat.default: cat,
    aten.stack.default: stack,
    aten.select_backward.default: select_backward,
    aten.slice_backward.default: slice_backward,
    aten.repeat.default: repeat,
    aten.constant_pad_nd.default: pad,
}

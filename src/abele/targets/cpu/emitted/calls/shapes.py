"""Operators that only move elements: slices of a result are written one by one."""

from __future__ import annotations

from typing import Any

import torch

from abele.targets.cpu.emitted.places import Place

aten = torch.ops.aten


def cat(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.cat``."""
    tensors, dim = node.args[0], (node.args[1] if len(node.args) > 1 else 0)
    if node.kwargs:
        return False
    places = [translator.places[each] for each in tensors]
    result = translator.new_like(node)
    dim %= len(result.shape)
    start = 0
    for place in places:
        if place.shape == (0,):  # torch lets an empty vector pass
            continue
        if len(place.shape) != len(result.shape) or place.dtype is not result.dtype:
            return False
    for place in places:
        if place.size:
            target = _slice(result, dim, start, place.shape[dim], 1)
            if not translator.moved(place, target):
                _store(translator, place, target)
            start += place.shape[dim]
    translator.places[node] = result
    return True


def stack(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.stack``."""
    tensors, dim = node.args[0], (node.args[1] if len(node.args) > 1 else 0)
    result = translator.new_like(node)
    dim %= len(result.shape)
    for index, each in enumerate(tensors):
        place, target = translator.places[each], _select(result, dim, index)
        if not translator.moved(place, target):
            _store(translator, place, target)
    translator.places[node] = result
    return True


def select_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.select_backward``: zeros, and the gradient in one slice."""
    grad, _, dim, index = node.args
    result = translator.new_like(node)
    dim %= len(result.shape)
    _fill(translator, result)
    target = _select(result, dim, index % result.shape[dim])
    _store(translator, translator.places[grad], target)
    translator.places[node] = result
    return True


def slice_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.slice_backward``."""
    grad, _, dim, start, _, step = node.args
    place, result = translator.places[grad], translator.new_like(node)
    dim %= len(result.shape)
    size = result.shape[dim]
    start = min(max(start + size if start < 0 else start, 0), size)
    _fill(translator, result)
    _store(translator, place, _slice(result, dim, start, place.shape[dim], step))
    translator.places[node] = result
    return True


def _slice(place: Place, dim: int, start: int, size: int, step: int) -> Place:
    shape, stride = list(place.shape), list(place.stride)
    offset = place.offset + start * stride[dim]
    shape[dim], stride[dim] = size, stride[dim] * step
    return Place(place.buffer, tuple(shape), tuple(stride), offset)


def _select(place: Place, dim: int, index: int) -> Place:
    shape, stride = list(place.shape), list(place.stride)
    offset = place.offset + index * stride[dim]
    del shape[dim], stride[dim]
    return Place(place.buffer, tuple(shape), tuple(stride), offset)


def _store(translator: Any, value: Place, target: Place) -> None:
    if target.size:
        translator.pointwise([value], "{0}".format, target)


def _fill(translator: Any, target: Place) -> None:
    translator.pointwise([0], "{0}".format, target)


HANDLERS = {
    aten.cat.default: cat,
    aten.stack.default: stack,
    aten.select_backward.default: select_backward,
    aten.slice_backward.default: slice_backward,
}

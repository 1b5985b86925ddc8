"""Average pools as elementwise sums of strided slices, and their gradients as broadcasts."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from abele.targets.translation.movement import arguments, fill, sliced
from abele.targets.translation.places import Place

aten = torch.ops.aten

# Larger windows are left to torch.
_LARGEST = 36
_DEFAULTS: tuple[Any, ...] = ([], [], [0, 0], False, True, None)

_Size = tuple[int, int]


def mean_pool(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.avg_pool2d`` without padding to an elementwise sum."""
    x, *given = arguments(node)
    place = translator.places[x]
    kernel, stride = _windows(given)
    if kernel is None or stride is None or kernel[0] * kernel[1] > _LARGEST:
        return None
    result = translator.new(tuple(node.meta["val"].shape), place.dtype)
    if not place.dtype.is_floating_point or not result.size:
        return None
    positions = list(itertools.product(range(kernel[0]), range(kernel[1])))
    slices = [_window(place, at, stride, result.shape) for at in positions]
    text = " + ".join(f"{{{i}}}" for i in range(len(slices)))
    form = f"(({text}) / {{{len(slices)}}})".format
    translator.pointwise([*slices, len(slices)], form, result)
    return result


def mean_pool_backward(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.avg_pool2d_backward`` of non-overlapping windows to a broadcast."""
    grad, x, *given = arguments(node)
    grad, shape = translator.places[grad], translator.places[x].shape
    kernel, stride = _windows(given)
    if kernel is None or stride != kernel:
        return None
    result = translator.new(shape, grad.dtype)
    if not grad.dtype.is_floating_point or not result.size or not grad.size:
        return None
    if [n * k for n, k in zip(grad.shape[-2:], kernel, strict=True)] != list(shape[-2:]):
        fill(translator, result)
    values, target = _blocks(grad, result, kernel)
    translator.pointwise([values, kernel[0] * kernel[1]], "({0} / {1})".format, target)
    return result


def _window(place: Place, at: _Size, stride: _Size, out: tuple[int, ...]) -> Place:
    """Return a strided view of the element at one position of each pooling window."""
    rank = len(place.shape)
    for dim, start, step in zip((rank - 2, rank - 1), at, stride, strict=True):
        place = sliced(place, dim, start, out[dim], step)
    return place


def _blocks(small: Place, large: Place, factor: _Size) -> tuple[Place, Place]:
    """Return views that pair each pooled element with its window in the larger tensor."""
    *outer, height, width = small.shape
    shape = (*outer, height, factor[0], width, factor[1])
    *steps, down, right = large.stride
    blocks = (*steps, down * factor[0], down, right * factor[1], right)
    *steps, small_down, small_right = small.stride
    repeated = (*steps, small_down, 0, small_right, 0)
    return (
        Place(small.buffer, shape, repeated, small.offset),
        Place(large.buffer, shape, blocks, large.offset),
    )


def _windows(given: list[Any]) -> tuple[_Size | None, _Size | None]:
    """Return kernel and stride of an average pool; None with padding or partial windows."""
    kernel, stride, padding, ceil, _, divisor = (*given, *_DEFAULTS[len(given) :])
    if any(padding) or ceil or divisor is not None:
        return None, None
    kernel = kernel[0], kernel[-1]
    return kernel, (stride[0], stride[-1]) if stride else kernel


HANDLERS = {
    aten.avg_pool2d.default: mean_pool,
    aten.avg_pool2d_backward.default: mean_pool_backward,
}

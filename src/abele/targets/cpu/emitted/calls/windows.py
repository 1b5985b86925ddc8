"""Mean pools and nearest upsampling: sums of strided slices, and broadcasts."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from abele.targets.translation.movement import arguments, fill, sliced
from abele.targets.translation.places import Place

aten = torch.ops.aten

# Larger windows are left to torch.
_LARGEST = 36

_Size = tuple[int, int]


def mean_pool(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.avg_pool2d`` without padding."""
    x, *given = arguments(node)
    kernel, stride = _windows(given)
    if kernel is None or stride is None:
        return False
    return _mean(translator, node, translator.places[x], kernel, stride)


def adaptive_mean_pool(translator: Any, node: torch.fx.Node) -> bool:
    """``aten._adaptive_avg_pool2d`` with windows of one size."""
    place = translator.places[arguments(node)[0]]
    kernel = _ratio(place.shape[-2:], arguments(node)[1])
    return kernel is not None and _mean(translator, node, place, kernel, kernel)


def _mean(translator: Any, node: torch.fx.Node, place: Place, kernel: _Size, stride: _Size) -> bool:
    result = translator.new(tuple(node.meta["val"].shape), place.dtype)
    count = kernel[0] * kernel[1]
    if not place.dtype.is_floating_point or count > _LARGEST or not result.size:
        return False
    slices = [_window(place, at, stride, result.shape) for at in _positions(kernel)]
    text = " + ".join(f"{{{i}}}" for i in range(count))
    translator.pointwise([*slices, count], f"(({text}) / {{{count}}})".format, result)
    translator.places[node] = result
    return True


def mean_pool_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.avg_pool2d_backward`` without padding, of windows that do not overlap."""
    grad, x, *given = arguments(node)
    kernel, stride = _windows(given)
    if kernel is None or stride != kernel:
        return False
    return _spread(translator, node, translator.places[grad], translator.places[x].shape, kernel)


def adaptive_mean_pool_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten._adaptive_avg_pool2d_backward`` of windows of one size."""
    grad, x = (translator.places[each] for each in arguments(node))
    kernel = _ratio(x.shape[-2:], grad.shape[-2:])
    return kernel is not None and _spread(translator, node, grad, x.shape, kernel)


def _spread(
    translator: Any, node: torch.fx.Node, grad: Place, shape: tuple[int, ...], kernel: _Size
) -> bool:
    result = translator.new(shape, grad.dtype)
    if not grad.dtype.is_floating_point or not result.size or not grad.size:
        return False
    covered = [n * k for n, k in zip(grad.shape[-2:], kernel, strict=True)]
    if covered != list(shape[-2:]):
        fill(translator, result)
    values, target = _blocks(grad, result, kernel)
    translator.pointwise([values, kernel[0] * kernel[1]], "({0} / {1})".format, target)
    translator.places[node] = result
    return True


def upsample(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.upsample_nearest2d`` by whole factors."""
    place = translator.places[arguments(node)[0]]
    shape = tuple(node.meta["val"].shape)
    factor = _ratio(shape[-2:], place.shape[-2:])
    if factor is None or not _plain_scales(arguments(node)[2:], factor) or not place.size:
        return False
    result = translator.new(shape, place.dtype)
    values, target = _blocks(place, result, factor)
    translator.pointwise([values], "{0}".format, target)
    translator.places[node] = result
    return True


def upsample_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.upsample_nearest2d_backward`` by whole factors."""
    grad, shape = translator.places[arguments(node)[0]], tuple(arguments(node)[2])
    factor = _ratio(grad.shape[-2:], shape[-2:])
    if factor is None or not _plain_scales(arguments(node)[3:], factor) or not grad.size:
        return False
    if factor[0] * factor[1] > _LARGEST:
        return False
    result = translator.new(shape, grad.dtype)
    slices = [_window(grad, at, factor, shape) for at in _positions(factor)]
    text = " + ".join(f"{{{i}}}" for i in range(len(slices)))
    translator.pointwise(slices, f"({text})".format, result)
    translator.places[node] = result
    return True


def _positions(kernel: _Size) -> list[_Size]:
    return list(itertools.product(range(kernel[0]), range(kernel[1])))


def _window(place: Place, at: _Size, stride: _Size, out: tuple[int, ...]) -> Place:
    """Return the elements at a position of each window."""
    rank = len(place.shape)
    for dim, start, step in zip((rank - 2, rank - 1), at, stride, strict=True):
        place = sliced(place, dim, start, out[dim], step)
    return place


def _blocks(small: Place, large: Place, factor: _Size) -> tuple[Place, Place]:
    """Each element of one tensor, and the block of the other that belongs to it."""
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
    """Kernel and stride of a pool without padding, whose windows all lie inside."""
    kernel, stride, padding, ceil, _, divisor = (*given, *_DEFAULTS[len(given) :])
    if any(padding) or ceil or divisor is not None:
        return None, None
    kernel = _pair(kernel)
    return kernel, _pair(stride) if stride else kernel


def _pair(values: list[int]) -> _Size:
    return values[0], values[-1]


def _ratio(large: Any, small: Any) -> _Size | None:
    pairs = list(zip(large, small, strict=True))
    if any(not b or a % b for a, b in pairs):
        return None
    return pairs[0][0] // pairs[0][1], pairs[1][0] // pairs[1][1]


def _plain_scales(scales: tuple[Any, ...], factor: _Size) -> bool:
    return all(s is None or s == f for s, f in zip(scales, factor, strict=False))


_DEFAULTS: tuple[Any, ...] = ([], [], [0, 0], False, True, None)

HANDLERS = {
    aten.avg_pool2d.default: mean_pool,
    aten.avg_pool2d_backward.default: mean_pool_backward,
    aten._adaptive_avg_pool2d.default: adaptive_mean_pool,
    aten._adaptive_avg_pool2d_backward.default: adaptive_mean_pool_backward,
    aten.upsample_nearest2d.default: upsample,
    aten.upsample_nearest2d_backward.default: upsample_backward,
}

"""Convolutions of 1x1, which are products of matrices for each sample.

    y = convolution(x, w)   ->   y[n] = w x[n]

Images lie as planes, and a product reads them where they are: rows of ``x[n]`` are channels,
columns are pixels. The library changes the order of images before and after it computes.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from abele.kernels.convolution import Convolution, convolution_of
from abele.targets.cpu.emitted.calls import products
from abele.targets.cpu.emitted.calls.matrices import multiplied, usable
from abele.targets.cpu.emitted.calls.reductions import summed
from abele.targets.translation.moves.arguments import arguments
from abele.targets.translation.moves.slices import fill, sliced, store, turned
from abele.targets.translation.places import Place, contiguous_stride

# Columns of a tile of a product, and of half of one: those without a pixel cost as much as others.
_TILE, _HALF = 32, 16
_LEAST_PIXELS, _LEAST_FILLED = 32, 0.9
# The library's way costs more than that with so few weights.
_FEW_WEIGHTS = 1 << 16


def is_one(node: torch.fx.Node) -> bool:
    """Return whether a node is a convolution of 1x1, or its backward."""
    convolution = convolution_of(node)
    return convolution is not None and set(convolution.weight.shape[2:]) == {1}


def why_not(node: torch.fx.Node) -> str | None:
    """Return why a convolution or its backward is no product; ``None`` if it is one.

    Args:
        node: any of the two; its images, and their gradients, are described in ``meta["val"]``.
    """
    convolution = convolution_of(node)
    if convolution is None or not is_one(node):
        return "the library's: its kernel is larger than one pixel"
    plain = not any(convolution.padding) and not convolution.transposed
    if not plain or convolution.groups != 1:
        return "the library's: our products know no padding, transposition or groups"
    images: Any = node.args[0]
    values = [convolution.image, images.meta["val"]]
    floats = convolution.weight.dtype is torch.float32
    if not floats or any(
        each.dtype is not torch.float32 or not each.is_contiguous() for each in values
    ):
        return "the library's: our products are for contiguous images in float32"
    outputs, inputs = convolution.weight.shape[:2]
    pixels = _pixels_of(convolution)
    if pixels > 1 and not products.is_ours(torch.float32, outputs, inputs, pixels):
        return "the library's: it has too few channels for our products"
    if pixels > 1 and not _fills_tiles(pixels, outputs * inputs):
        return "the library's: it has too few pixels for our products"
    return None


def _pixels_of(convolution: Convolution) -> int:
    """How many pixels a sample of its result has."""
    sizes, steps = convolution.image.shape[2:], convolution.stride
    return math.prod(-(-size // steps[i % len(steps)]) for i, size in enumerate(sizes))


def _fills_tiles(pixels: int, weights: int) -> bool:
    rest = pixels % _TILE
    computed = pixels - rest + (0 if rest == 0 else _HALF if rest <= _HALF else _TILE)
    enough = weights <= _FEW_WEIGHTS or pixels >= _LEAST_FILLED * computed
    return pixels >= _LEAST_PIXELS and enough


def convolution(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.convolution`` of 1x1."""
    if why_not(node) is not None:
        return False
    x, weight, bias, stride, *_ = arguments(node)
    images = _read(translator, translator.places[x], stride)
    result = _weighted(translator, _weight(translator.places[weight]), images)
    result = _seen(result, tuple(node.meta["val"].shape))
    if bias is not None:
        place = _along_channels(translator.places[bias], len(result.shape))
        product, result = result, translator.new_like(node)
        translator.pointwise([product, place], "({0} + {1})".format, result)
    translator.places[node] = result
    return True


def convolution_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.convolution_backward`` of 1x1."""
    if why_not(node) is not None:
        return False
    grad, x, weight, _, stride, *_, mask = arguments(node)
    grad, x, weight = (translator.places[each] for each in (grad, x, weight))
    results: list[Place | None] = [None, None, None]
    if mask[0]:
        of_read = _weighted(translator, turned(_weight(weight)), grad)
        results[0] = _spread(translator, of_read, x.shape, stride)
    if mask[1]:
        result = _summed_product(translator, grad, _read(translator, x, stride))
        results[1] = _seen(result, weight.shape)
    if mask[2]:
        results[2] = translator.new((grad.shape[1],), grad.dtype)
        others = {0, *range(2, len(grad.shape))}
        translator.add(summed(grad, results[2], others, 1.0))
    translator.places[node] = results
    return True


def _read(translator: Any, images: Place, stride: list[int]) -> Place:
    """The pixels that are read, in order."""
    return translator.contiguous(_every(images, stride))


def _every(images: Place, stride: list[int]) -> Place:
    """Every so many pixels along each dimension."""
    for dim in range(2, len(images.shape)):
        step = stride[(dim - 2) % len(stride)]
        images = sliced(images, dim, 0, -(-images.shape[dim] // step), step)
    return images


def _spread(translator: Any, pixels: Place, shape: tuple[int, ...], stride: list[int]) -> Place:
    """Images with these pixels where some were read, and 0 elsewhere."""
    if set(stride) == {1}:
        return _seen(pixels, shape)
    images = translator.new(shape, pixels.dtype)
    target = _every(images, stride)
    fill(translator, images)
    store(translator, _seen(pixels, target.shape), target)
    return images


def _weighted(translator: Any, weight: Place, images: Place) -> Place:
    """A product of ``[O, C]`` and contiguous ``[N, C, ...]`` of each sample: ``[N, O, pixels]``."""
    (rows, inner), (count, *_) = weight.shape, images.shape
    pixels = math.prod(images.shape[2:])
    if pixels == 1:
        return multiplied(translator, _matrix(images, count, inner), turned(weight))
    weight = usable(translator, weight)
    row, column = weight.stride
    result = translator.new((count, rows, pixels), images.dtype)
    if count == 1:
        steps = f"0, {row}, {column}", f"0, {pixels}, 1"
        of_result = _matrix(result, rows, pixels)
        made = products.product(weight, _matrix(images, inner, pixels), of_result, 1, steps)
    else:
        shared = Place(weight.buffer, (count, rows, inner), (0, row, column), weight.offset)
        each = _seen(images, (count, inner, pixels))
        steps = f"0, {row}, {column}", f"{inner * pixels}, {pixels}, 1"
        made = products.product(shared, each, result, count, steps)
    translator.add(made)
    return result


def _summed_product(translator: Any, grad: Place, images: Place) -> Place:
    """The sum over samples of ``[O, pixels]`` times ``[pixels, C]``: ``[O, C]``."""
    (count, rows), columns = grad.shape[:2], images.shape[1]
    pixels = math.prod(grad.shape[2:])
    if pixels == 1:
        of_samples = _matrix(grad, count, rows)
        return multiplied(translator, turned(of_samples), _matrix(images, count, columns))
    result = translator.new((rows, columns), grad.dtype)
    if count == 1:
        right = turned(_matrix(images, columns, pixels))
        steps = f"0, {pixels}, 1", f"0, 1, {pixels}"
        made = products.product(_matrix(grad, rows, pixels), right, result, 1, steps)
    else:
        each = Place(
            images.buffer, (count, pixels, columns), (columns * pixels, 1, pixels), images.offset
        )
        steps = f"{rows * pixels}, {pixels}, 1", f"{columns * pixels}, 1, {pixels}"
        of_samples = _seen(grad, (count, rows, pixels))
        made = products.product(of_samples, each, result, count, steps, summed=True)
    translator.add(made)
    return result


def _seen(place: Place, shape: tuple[int, ...]) -> Place:
    """Contiguous memory as a tensor of another shape."""
    return Place(place.buffer, shape, contiguous_stride(shape), place.offset)


def _matrix(place: Place, rows: int, columns: int) -> Place:
    return _seen(place, (rows, columns))


def _weight(place: Place) -> Place:
    return Place(place.buffer, place.shape[:2], place.stride[:2], place.offset)


def _along_channels(bias: Place, rank: int) -> Place:
    ones = (1,) * (rank - 2)
    return Place(bias.buffer, (*bias.shape, *ones), (*bias.stride, *(0 for _ in ones)), bias.offset)

"""Convolutions with 1x1 or non-overlapping windows, as one GEMM per sample.

    y = convolution(x, w)   ->   y[n] = w x[n]

Activations are NCHW, and a GEMM reads those of 1x1 where they are stored: rows of ``x[n]`` are
channels, columns are pixels. Otherwise windows are gathered first: rows are the elements of a
window, columns windows. Torch's library changes the layout before and after it computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from abele.kernels.convolutions import convolution_of
from abele.kernels.on_tensors import result_shape
from abele.targets.cpu.emitted.calls import products
from abele.targets.cpu.emitted.calls.matrices import multiplied, usable
from abele.targets.cpu.emitted.calls.reductions import summed
from abele.targets.translation.movement import arguments, fill, store, turned
from abele.targets.translation.places import Place, contiguous_stride

# Columns of a tile of a product, and of half of one: those without a pixel cost as much as others.
_TILE, _HALF = 32, 16
_LEAST_PIXELS, _LEAST_FILLED = 32, 0.9
# With so few weights, bringing samples _together costs more than columns that are not used.
_FEW_WEIGHTS = 1 << 16


def is_ours(node: torch.fx.Node) -> bool:
    """Return whether a convolution or its backward is computed as a GEMM.

    Requires non-overlapping windows, no padding, dilation, transposition or groups, and float32
    NCHW input with enough channels and pixels, or a single window.

    Args:
        node: forward or backward convolution with tensors in ``meta["val"]``.
    """
    convolution = convolution_of(node)
    if convolution is None or not _are_side_by_side(convolution.weight.shape, convolution.stride):
        return False
    plain = not any(convolution.padding) and not convolution.transposed
    if not plain or convolution.groups != 1 or set(convolution.dilation) != {1}:
        return False
    types = {convolution.image.dtype, convolution.weight.dtype}
    if types != {torch.float32} or convolution.reads_channels_last or not convolution.image.numel():
        return False
    outputs, inputs = convolution.weight.flatten(1).shape
    sizes = convolution.image.shape, convolution.weight.shape
    pixels = math.prod(_windows_along(*sizes, convolution.stride))
    columns = convolution.image.shape[0] * pixels
    enough = columns >= _LEAST_PIXELS and products.is_ours(torch.float32, outputs, inputs, columns)
    return pixels == 1 or enough


def _fills_tiles(pixels: int, weights: int) -> bool:
    """Return whether a GEMM per sample fills most of its tiles with pixels."""
    rest = pixels % _TILE
    computed = pixels - rest + (0 if rest == 0 else _HALF if rest <= _HALF else _TILE)
    enough = weights <= _FEW_WEIGHTS or pixels >= _LEAST_FILLED * computed
    return pixels >= _LEAST_PIXELS and enough


def convolution(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.convolution`` of non-overlapping windows to GEMMs."""
    if not is_ours(node):
        return None
    x, weight, bias, stride, *_ = arguments(node)
    x, weight = (translator.places[each] for each in (x, weight))
    images = _read_by_windows(translator, x, weight.shape, stride)
    product = _weighted(translator, _weight(translator, weight), images)
    result = _seen_as(product, tuple(node.meta["val"].shape))
    if bias is not None:
        place = _along_channels(translator.places[bias], len(result.shape))
        product, result = result, translator.new_like(node)
        translator.pointwise([product, place], "({0} + {1})".format, result)
    return result


def convolution_backward(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.convolution_backward`` of non-overlapping windows to GEMMs."""
    if not is_ours(node):
        return None
    grad, x, weight, _, stride, *_, mask = arguments(node)
    grad, x, weight = (translator.places[each] for each in (grad, x, weight))
    grad = translator.contiguous(grad)
    grads = _matrices_of(grad, grad.shape[1], math.prod(grad.shape[2:]))
    results: list[Place | None] = [None, None, None]
    if mask[0]:
        of_read = _weighted(translator, turned(_weight(translator, weight)), grads)
        results[0] = _spread_by_windows(translator, of_read, x.shape, weight.shape, stride)
    if mask[1]:
        images = _read_by_windows(translator, x, weight.shape, stride)
        result = _summed_product(translator, grads, images)
        results[1] = Place(result.buffer, weight.shape, contiguous_stride(weight.shape))
    if mask[2]:
        results[2] = translator.new((grad.shape[1],), grad.dtype)
        others = {0, *range(2, len(grad.shape))}
        translator.add(summed(grad, results[2], others, 1.0))
    return results


def _is_apart(images: Place, weights: int) -> bool:
    """Return whether each sample of a convolution is a GEMM of its own."""
    return images.shape[0] > 1 and _fills_tiles(images.shape[2], weights)


def _weighted(translator: Any, weight: Place, images: Place) -> Place:
    """Multiply ``[O, C]`` by ``[N, C, pixels]`` for each sample: ``[N, O, pixels]``."""
    (rows, inner), (count, _, pixels) = weight.shape, images.shape
    if not _is_apart(images, weight.size):
        if pixels == 1:  # samples are the rows then
            matrix = Place(images.buffer, (count, inner), images.stride[:2], images.offset)
            result = multiplied(translator, matrix, turned(weight))
            return Place(result.buffer, (count, rows, 1), (rows, 1, 1), result.offset)
        result = multiplied(translator, weight, _together(translator, images))
        strides = pixels, count * pixels, 1
        return Place(result.buffer, (count, rows, pixels), strides, result.offset)
    weight = usable(translator, weight)
    row, column = weight.stride
    shared = Place(weight.buffer, (count, rows, inner), (0, row, column), weight.offset)
    result = translator.new((count, rows, pixels), images.dtype)
    steps = f"0, {row}, {column}", _steps(images)
    translator.add(products.product(shared, images, result, count, steps))
    return result


def _summed_product(translator: Any, grads: Place, images: Place) -> Place:
    """Sum ``[O, pixels]`` times ``[pixels, C]`` over samples: ``[O, C]``."""
    (count, rows, pixels), columns = grads.shape, images.shape[1]
    if not _is_apart(images, rows * columns):
        if pixels == 1:
            of_grads, of_images = (
                Place(each.buffer, (count, each.shape[1]), each.stride[:2], each.offset)
                for each in (grads, images)
            )
            return multiplied(translator, turned(of_grads), of_images)
        left, right = (_together(translator, each) for each in (grads, images))
        return multiplied(translator, left, turned(right))
    sample, row, _ = images.stride
    right = Place(images.buffer, (count, pixels, columns), (sample, 1, row), images.offset)
    result = translator.new((rows, columns), grads.dtype)
    steps = _steps(grads), f"{sample}, 1, {row}"
    translator.add(products.product(grads, right, result, count, steps, summed=True))
    return result


def _steps(matrices: Place) -> str:
    return ", ".join(map(str, matrices.stride))


def _weight(translator: Any, place: Place) -> Place:
    """Return a convolution weight as a matrix; a 1x1 weight need not be contiguous."""
    if math.prod(place.shape[2:]) == 1:
        return Place(place.buffer, place.shape[:2], place.stride[:2], place.offset)
    place = translator.contiguous(place)
    shape = place.shape[0], math.prod(place.shape[1:])
    return Place(place.buffer, shape, contiguous_stride(shape), place.offset)


def _along_channels(bias: Place, rank: int) -> Place:
    ones = (1,) * (rank - 2)
    return Place(bias.buffer, (*bias.shape, *ones), (*bias.stride, *(0 for _ in ones)), bias.offset)


# -- images as matrices
#
# A matrix is a place ``[samples, rows, pixels]`` whose pixels are neighbours. A window of 1x1 reads
# images where they are; what larger ones read is brought _together by a loop.


def _each(values: Sequence[int], rank: int) -> list[int]:
    """Broadcast a scalar stride or padding to all spatial dimensions."""
    return list(values) * rank if len(values) == 1 else list(values)


def _are_side_by_side(weight: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether windows are 1x1 or as large as their stride, so that none overlap."""
    kernel = list(weight[2:])
    return set(kernel) == {1} or kernel == _each(stride, len(kernel))


def _windows_along(
    images: Sequence[int], weight: Sequence[int], stride: Sequence[int]
) -> tuple[int, ...]:
    """Return a convolution's number of windows along each dimension, without padding."""
    rank = len(images) - 2
    return result_shape(images, weight, _each(stride, rank), [0] * rank)[2:]


def _matrices_of(place: Place, rows: int, pixels: int) -> Place:
    """Return a contiguous tensor viewed as a matrix for each sample."""
    shape = place.shape[0], rows, pixels
    return Place(place.buffer, shape, contiguous_stride(shape), place.offset)


def _seen_as(matrices: Place, shape: tuple[int, ...]) -> Place:
    """View matrices as ``[N, C, ...]``, or as windows ``[N, C, kernel ..., windows ...]``."""
    (_, rows, _), (sample, row, _) = matrices.shape, matrices.stride
    split = next(i for i in range(2, len(shape) + 1) if math.prod(shape[1:i]) == rows)
    strides = (row * each for each in contiguous_stride(shape[1:split]))
    return Place(
        matrices.buffer,
        shape,
        (sample, *strides, *contiguous_stride(shape[split:])),
        matrices.offset,
    )


def _read_by_windows(
    translator: Any, images: Place, weight: tuple[int, ...], stride: list[int]
) -> Place:
    """Gather the pixels that windows read into matrices ``[window elements, windows]``."""
    read = translator.contiguous(_windows(images, weight, stride))
    pixels = math.prod(_windows_along(images.shape, weight, stride))
    return _matrices_of(read, math.prod(weight[1:]), pixels)


def _windows(images: Place, weight: tuple[int, ...], stride: list[int]) -> Place:
    """Return a view of activations by windows: ``[N, C, kernel ..., windows ...]``."""
    steps, strides = _each(stride, len(images.shape) - 2), images.stride[2:]
    shape = *images.shape[:2], *weight[2:], *_windows_along(images.shape, weight, stride)
    further = [a * b for a, b in zip(strides, steps, strict=True)]
    return Place(images.buffer, shape, (*images.stride[:2], *strides, *further), images.offset)


def _spread_by_windows(
    translator: Any,
    read: Place,
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    stride: list[int],
) -> Place:
    """Scatter matrices of window elements to pixels, with 0 where no window reads."""
    if set(weight[2:]) == set(stride) == {1}:
        return _seen_as(read, shape)
    images = translator.new(shape, read.dtype)
    target = _windows(images, weight, stride)
    if target.size < images.size:
        fill(translator, images)
    store(translator, _seen_as(read, target.shape), target)
    return images


def _together(translator: Any, matrices: Place) -> Place:
    """Return a matrix that concatenates the pixels of all samples."""
    (count, rows, pixels), (sample, row, _) = matrices.shape, matrices.stride
    shape = rows, count, pixels
    moved = Place(matrices.buffer, shape, (row, sample, 1), matrices.offset)
    moved = translator.contiguous(moved)
    return Place(moved.buffer, (rows, count * pixels), (count * pixels, 1), moved.offset)

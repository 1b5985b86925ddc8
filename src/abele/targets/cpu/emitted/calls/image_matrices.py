"""Images as matrices for products: of each sample, with rows of pixels or of what windows read.

A matrix is a place ``[samples, rows, pixels]`` whose pixels are neighbours. A window of 1x1 reads
images where they lie; what larger ones read is brought together by a loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from abele.kernels.on_tensors import result_shape
from abele.targets.translation.movement import fill, store
from abele.targets.translation.places import Place, contiguous_stride


def _each(values: Sequence[int], rank: int) -> list[int]:
    """Broadcast a scalar stride or padding to all spatial dimensions."""
    return list(values) * rank if len(values) == 1 else list(values)


def are_side_by_side(weight: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether windows are 1x1 or as large as their stride, so that none overlap."""
    kernel = list(weight[2:])
    return set(kernel) == {1} or kernel == _each(stride, len(kernel))


def windows(images: Sequence[int], weight: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Return the number of windows along each dimension, without padding."""
    rank = len(images) - 2
    return result_shape(images, weight, _each(stride, rank), [0] * rank)[2:]


def matrices_of(place: Place, rows: int, pixels: int) -> Place:
    """Contiguous memory as a matrix for each sample."""
    shape = place.shape[0], rows, pixels
    return Place(place.buffer, shape, contiguous_stride(shape), place.offset)


def seen_as(matrices: Place, shape: tuple[int, ...]) -> Place:
    """Matrices as images ``[N, C, ...]``, or as windows ``[N, C, kernel ..., windows ...]``."""
    (_, rows, _), (sample, row, _) = matrices.shape, matrices.stride
    split = next(i for i in range(2, len(shape) + 1) if math.prod(shape[1:i]) == rows)
    strides = (row * each for each in contiguous_stride(shape[1:split]))
    return Place(
        matrices.buffer,
        shape,
        (sample, *strides, *contiguous_stride(shape[split:])),
        matrices.offset,
    )


def read_by_windows(
    translator: Any, images: Place, weight: tuple[int, ...], stride: list[int]
) -> Place:
    """Return the pixels that windows read, as matrices whose rows are elements of a window."""
    read = translator.contiguous(_windows(images, weight, stride))
    pixels = math.prod(windows(images.shape, weight, stride))
    return matrices_of(read, math.prod(weight[1:]), pixels)


def _windows(images: Place, weight: tuple[int, ...], stride: list[int]) -> Place:
    """Images ``[N, C, ...]`` as what windows read: ``[N, C, kernel ..., windows ...]``."""
    steps, strides = _each(stride, len(images.shape) - 2), images.stride[2:]
    shape = *images.shape[:2], *weight[2:], *windows(images.shape, weight, stride)
    further = [a * b for a, b in zip(strides, steps, strict=True)]
    return Place(images.buffer, shape, (*images.stride[:2], *strides, *further), images.offset)


def spread_by_windows(
    translator: Any,
    read: Place,
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    stride: list[int],
) -> Place:
    """Images with these numbers where windows read some, and 0 elsewhere."""
    if set(weight[2:]) == set(stride) == {1}:
        return seen_as(read, shape)
    images = translator.new(shape, read.dtype)
    target = _windows(images, weight, stride)
    if target.size < images.size:
        fill(translator, images)
    store(translator, seen_as(read, target.shape), target)
    return images


def together(translator: Any, matrices: Place) -> Place:
    """Return a matrix that concatenates the pixels of all samples."""
    (count, rows, pixels), (sample, row, _) = matrices.shape, matrices.stride
    shape = rows, count, pixels
    moved = Place(matrices.buffer, shape, (row, sample, 1), matrices.offset)
    moved = translator.contiguous(moved)
    return Place(moved.buffer, (rows, count * pixels), (count * pixels, 1), moved.offset)

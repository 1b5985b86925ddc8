"""Pieces of tensors, and what is written to them."""

from __future__ import annotations

import math
from typing import Any

from abele.targets.translation.places import Place


def sliced(place: Place, dim: int, start: int, size: int, step: int) -> Place:
    """Every ``step``-th of a dimension, ``size`` of them."""
    shape, stride = list(place.shape), list(place.stride)
    offset = place.offset + start * stride[dim]
    shape[dim], stride[dim] = size, stride[dim] * step
    return Place(place.buffer, tuple(shape), tuple(stride), offset)


def selected(place: Place, dim: int, index: int) -> Place:
    """One of a dimension, which is gone then."""
    shape, stride = list(place.shape), list(place.stride)
    offset = place.offset + index * stride[dim]
    del shape[dim], stride[dim]
    return Place(place.buffer, tuple(shape), tuple(stride), offset)


def turned(matrix: Place) -> Place:
    """Columns as rows."""
    return Place(matrix.buffer, matrix.shape[::-1], matrix.stride[::-1], matrix.offset)


def store(translator: Any, value: Place, target: Place) -> None:
    """Write a tensor to where another lies, converted and broadcast if need be."""
    if target.size:
        translator.pointwise([value], "{0}".format, target)


def fill(translator: Any, target: Place) -> None:
    """Write zeros."""
    translator.pointwise([0], "{0}".format, target)


def around(shape: tuple[int, ...], dim: int) -> str:
    """How many elements lie outside a dimension, along it, and inside it, as arguments.

    A number counts as one dimension of one element, as in torch.
    """
    shape = shape or (1,)
    dim %= len(shape)
    return f"{math.prod(shape[:dim])}, {shape[dim]}, {math.prod(shape[dim + 1 :])}"

"""Sums, means and Euclidean norms as kernel calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from abele.targets.cpu.emitted.calls import shared
from abele.targets.cpu.emitted.calls.sixteen_bits import in_16_bits
from abele.targets.translation.movement import arguments, dims_of
from abele.targets.translation.operations import StridedCall
from abele.targets.translation.places import Place, contiguous_stride

aten = torch.ops.aten

_FLOATS_PER_THREAD = 16384


# Fewer sums than this are shared by threads one by one; of columns, so many at a time (sums.h).
_FEW, _SUMS = 8, 4

# Size, stride in the source, stride in the result.
_Dim = tuple[int, int, int]
_ONE: _Dim = (1, 0, 0)


def sum_(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.sum`` over some or all dimensions to a kernel call."""
    return _reduced(translator, node, dims_of(node))


def mean(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.mean`` over some or all dimensions to a kernel call."""
    x, result = arguments(node)[0].meta["val"], node.meta["val"]
    if not result.dtype.is_floating_point:
        return None
    return _reduced(translator, node, dims_of(node), result.numel() / max(1, x.numel()))


def norm(translator: Any, node: torch.fx.Node) -> Any:
    """Translate a Euclidean ``aten.linalg_vector_norm`` of float32 or float64 to a kernel call."""
    x, result, order = arguments(node)[0].meta["val"], node.meta["val"], arguments(node)[1:2]
    if order not in ((), (2,)) or {x.dtype, result.dtype} not in ({torch.float32}, {torch.float64}):
        return None
    if x.numel() == result.numel():  # the norm of one number, of which torch makes no square
        return None
    return _reduced(translator, node, dims_of(node, 2), norm=True)


def _reduced(
    translator: Any, node: torch.fx.Node, reduced: set[int], scale: float = 1, *, norm: bool = False
) -> Any:
    place: Place = translator.places[arguments(node)[0]]
    result = translator.new_like(node)
    if not place.size or not result.contiguous:
        return None
    if sum_text(place, result, reduced, scale, norm=norm) is None:
        place = translator.contiguous(moved_last(place, reduced))
        reduced = set(range(len(place.shape) - len(reduced), len(place.shape)))
    groups = _groups(place, reduced)
    if result.dtype is torch.float32 and groups is not None and _is_of_columns(groups[1]):
        place = in_16_bits(translator, place)
    translator.add(summed(place, result, reduced, scale, norm=norm))
    return result


def summed(
    place: Place, result: Place, reduced: set[int], scale: float, *, norm: bool = False
) -> StridedCall:
    """Return the call of a sum reduction.

    Arguments are those of ``sum_text``, whose result must not be None.
    """

    def form(reads: Sequence[Place], writes: Sequence[Place]) -> str:
        text = sum_text(reads[0], writes[0], reduced, scale, norm=norm)
        assert text is not None, "a contiguous tensor has two groups of dimensions"
        return text

    return StridedCall([place], [result], form([place], [result]), form)


def moved_last(place: Place, reduced: set[int]) -> Place:
    """Permute the reduced dimensions of a tensor behind all other dimensions."""
    order = sorted(range(len(place.shape)), key=lambda d: d in reduced)
    shape, stride = (tuple(each[d] for d in order) for each in (place.shape, place.stride))
    return Place(place.buffer, shape, stride, place.offset)


def sum_text(
    place: Place, result: Place, reduced: set[int], scale: float, *, norm: bool = False
) -> str | None:
    """Return the C++ call of a sum reduction, or None for unsupported strides.

    Args:
        place: the tensor to sum.
        result: contiguous, with or without the reduced dimensions (of size 1).
        reduced: dimensions of ``place``.
        scale: factor of each sum.
        norm: the root of the sum of squares, instead of the sum.
    """
    groups = _groups(place, reduced)
    if groups is None:
        return None
    outer, inner, far, near = groups
    columns = _is_of_columns(inner)
    parts = outer[0] * -(-inner[0] // 64) if columns else outer[0] * inner[0]
    share = place.size // max(parts, 1) // _FLOATS_PER_THREAD
    split = share > 1 and parts < _FEW and (columns or far[0] == 1)
    shares = share * min(parts, _SUMS if columns else 1) if split else parts
    most = max(1, min(shares, place.size // _FLOATS_PER_THREAD))
    dims = ", ".join(f"abele::Dim{{{{{a}, {b}, {c}}}}}" for a, b, c in (outer, inner, far, near))
    name = "sum_columns" if columns else "sum_rows"
    given = f"{dims}, {float(scale)!r}, {{0}}, {{1}}"
    types = {place.dtype, result.dtype}
    return shared.call(name, most, (split, norm), given, of_floats=types == {torch.float32})


def _groups(place: Place, reduced: set[int]) -> tuple[_Dim, _Dim, _Dim, _Dim] | None:
    """Return a sum's two outer and two reduced merged dimensions; None if more are needed."""
    kept = [d for d in range(len(place.shape)) if d not in reduced]
    steps = contiguous_stride(tuple(place.shape[d] for d in kept))
    result_stride = dict(zip(kept, steps, strict=True))
    order = [d for d in range(len(place.shape)) if place.shape[d] != 1]
    stay = _merged(
        [(place.shape[d], place.stride[d], result_stride[d]) for d in order if d in kept]
    )
    order.sort(key=lambda d: -place.stride[d])
    away = _merged([(place.shape[d], place.stride[d], 0) for d in order if d in reduced])
    if len(stay) > 2 or len(away) > 2:
        return None
    stay.sort(key=lambda dim: -dim[1])
    away.sort(key=lambda dim: -dim[1])
    outer, inner = [_ONE] * (2 - len(stay)) + stay
    far, near = [_ONE] * (2 - len(away)) + away
    return outer, inner, far, near


def _is_of_columns(inner: _Dim) -> bool:
    """Return whether the inner dimension of a sum is contiguous in input and result."""
    return inner[1] == 1 and inner[2] == 1


def _merged(dims: list[_Dim]) -> list[_Dim]:
    """Merge adjacent dimensions whose strides are contiguous in tensor and result."""
    merged: list[_Dim] = []
    for size, stride, result in dims:
        if merged and merged[-1][1] == stride * size and merged[-1][2] == result * size:
            merged[-1] = (merged[-1][0] * size, stride, result)
        else:
            merged.append((size, stride, result))
    return merged


HANDLERS = {
    aten.sum.dim_IntList: sum_,
    aten.sum.default: sum_,
    aten.mean.dim: mean,
    aten.mean.default: mean,
    aten.linalg_vector_norm.default: norm,
}

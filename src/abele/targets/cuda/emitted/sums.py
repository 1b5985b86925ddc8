"""CUDA sums over columns and channels (gradients of biases), as parts of launches.

Torch's kernels for each took a fifth of the time of all kernels in a step of a small GPT.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from abele.targets.cuda.emitted.blocks import Blocks, call
from abele.targets.translation.batch_norms import BatchNorms
from abele.targets.translation.movement import arguments, dims_of, options
from abele.targets.translation.places import Place

# Elements of a channel that a block reads, as in device.h.
_OF_BLOCK = 4096
# Fewer pixels lie too far apart to be read by neighbouring threads.
_LEAST_PIXELS = 16
_LARGEST_INDEX = 2**31


def usable(x: Place) -> bool:
    """Return whether the CUDA kernel can sum each channel of ``[samples, channels, ...]``."""
    small = x.size < _LARGEST_INDEX
    return x.dtype is torch.float32 and x.size > 0 and small and _pixels(x) >= _LEAST_PIXELS


def sizes(x: Place) -> tuple[int, int, int]:
    """Return the numbers of channels, of pixels per sample and of elements per channel."""
    return x.shape[1], _pixels(x), x.size // x.shape[1]


def parts_of(x: Place) -> tuple[int, int]:
    """Return the numbers of channels and of partial sums per channel."""
    return x.shape[1], -(-sizes(x)[-1] // _OF_BLOCK)


def summed(translator: Any, x: Place, result: Place) -> None:
    """Add CUDA kernel calls that sum each channel of a tensor.

    Args:
        translator: of the program.
        x: contiguous NCHW tensor that is ``usable``.
        result: one element per channel.
    """
    channels, parts = parts_of(x)
    sums = result if parts == 1 else translator.new((channels, parts), x.dtype)
    translator.add(call("channel_sums", [x], [sums], channels * parts, sizes(x)))
    if parts > 1:
        translator.add(call("channel_sum", [sums], [result], channels, [parts]))


def _pixels(x: Place) -> int:
    return x.size // (x.shape[0] * x.shape[1])


def _statistics(
    translator: Any,
    x: Place,
    running: Sequence[Place],
    saved: Sequence[Place],
    updated: Sequence[Place],
    momentum: float,
    eps: float,
) -> None:
    moments = translator.new((*parts_of(x), 2), x.dtype)
    parts = moments.size // 2
    translator.add(call("channel_moments", [x], [moments], parts, sizes(x)))
    settings = [eps, momentum] if running else [eps]
    reads, writes = [moments, *running], [*saved, *updated]
    rows = sizes(x)[-1:]
    translator.add(call("channel_statistics", reads, writes, x.shape[1], rows, settings))


def _sums(
    translator: Any, grad: Place, x: Place, mean: Place, rstd: Place, results: Sequence[Place]
) -> None:
    products = translator.new((*parts_of(x), 2), x.dtype)
    parts, reads = products.size // 2, [grad, x, mean]
    translator.add(call("channel_products", reads, [products], parts, sizes(x)))
    reads, rows = [products, rstd], sizes(x)[-1:]
    translator.add(call("channel_totals", reads, list(results), x.shape[1], rows))


BATCH_NORMS = BatchNorms(usable, _statistics, _sums).handlers


aten = torch.ops.aten

# Columns of a block, as in device.h.
_COLUMNS = 8
# Beyond, threads would have long sums; torch's kernel divides rows among blocks, too.
_MOST_ROWS, _MOST_ELEMENTS = 1 << 14, 1 << 22


def sums(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.sum`` over leading dimensions, or over all but the channel dimension."""
    place: Place = translator.places[arguments(node)[0]]
    result: Place = translator.new_like(node)
    if options(node) or {place.dtype, result.dtype} != {torch.float32} or not result.contiguous:
        return None
    reduced = dims_of(node)
    if _are_channels(place, reduced):
        summed(translator, place, result)
        return result
    matrix = _matrix(place, reduced)
    if matrix is None or not 2 <= matrix[0] <= _MOST_ROWS or place.size > _MOST_ELEMENTS:
        return None
    translator.add(summed_columns(place, result, *matrix))
    return result


def _are_channels(x: Place, reduced: set[int]) -> bool:
    """Return whether a sum reduces all dimensions but several channels."""
    if len(x.shape) < 3 or reduced != set(range(len(x.shape))) - {1} or not x.contiguous:
        return False
    return x.shape[1] > 1 and usable(x)


def summed_columns(x: Place, result: Place, rows: int, columns: int, step: int) -> Blocks:
    """Return the CUDA kernel call that sums the columns of a matrix.

    Args:
        x: view with the matrix's first element.
        result: one element per column.
        rows: number of rows.
        columns: number of columns, which are contiguous.
        step: row stride.
    """
    body = f"abele::column_sums(block, {rows}, size, {step}, (const float*)p[0], (float*)p[1]);"
    return Blocks([x], [result], "column_sums", body, columns, _COLUMNS)


def _matrix(place: Place, reduced: set[int]) -> tuple[int, int, int] | None:
    """Return rows, columns and row stride of the matrix that a sum reduces; None if none."""
    dims = [d for d in range(len(place.shape)) if place.shape[d] != 1]
    first = [d for d in dims if d in reduced]
    if not place.size or dims[: len(first)] != first or len(first) == len(dims):
        return None
    columns, rows = 1, 1
    for d in reversed(dims[len(first) :]):
        if place.stride[d] != columns:
            return None
        columns *= place.shape[d]
    step = place.stride[first[-1]] if first else columns
    for d in reversed(first):
        if place.stride[d] != step * rows:
            return None
        rows *= place.shape[d]
    return rows, columns, step


HANDLERS = {aten.sum.dim_IntList: sums}

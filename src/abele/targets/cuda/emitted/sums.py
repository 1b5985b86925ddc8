"""Sums over the rows of a matrix, such as gradients of biases, as parts of launches.

Torch has a kernel for each, which took a fifth of the time of all kernels in a step of a small GPT.
"""

from __future__ import annotations

from typing import Any

import torch

from abele.targets.cuda.emitted.blocks import Blocks
from abele.targets.translation.moves.arguments import arguments, dims_of, options
from abele.targets.translation.places import Place

aten = torch.ops.aten

# Columns of a block, as in device.h.
_COLUMNS = 8
# Beyond, threads would have long sums; torch's kernel divides rows among blocks, too.
_MOST_ROWS, _MOST_ELEMENTS = 1 << 14, 1 << 22


def column_sums(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.sum`` over dimensions that come before all others."""
    place: Place = translator.places[arguments(node)[0]]
    result: Place = translator.new_like(node)
    if options(node) or {place.dtype, result.dtype} != {torch.float32} or not result.contiguous:
        return False
    matrix = _matrix(place, dims_of(node, len(place.shape)))
    if matrix is None or not 2 <= matrix[0] <= _MOST_ROWS or place.size > _MOST_ELEMENTS:
        return False
    rows, columns, step = matrix
    body = f"abele::column_sums(block, {rows}, size, {step}, (const float*)p[0], (float*)p[1]);"
    translator.add(Blocks([place], [result], "column_sums", body, columns, _COLUMNS))
    translator.places[node] = result
    return True


def _matrix(place: Place, reduced: set[int]) -> tuple[int, int, int] | None:
    """Rows, columns and step of a matrix whose columns are summed; None if there is none."""
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


HANDLERS = {aten.sum.dim_IntList: column_sums}

"""Products of matrices."""

from __future__ import annotations

from typing import Any

import torch

from abele.targets.cpu.emitted.operations import Call
from abele.targets.cpu.emitted.places import Place

aten = torch.ops.aten


def mm(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.mm`` of floats."""
    if node.meta["val"].dtype is not torch.float32 or not node.meta["val"].numel():
        return False
    a, b = (translator.places[each] for each in node.args)
    translator.places[node] = _product(translator, node, a, b)
    return True


def addmm(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.addmm``: the product, and a sum that may become part of another loop."""
    if node.meta["val"].dtype is not torch.float32 or node.kwargs or not node.meta["val"].numel():
        return False
    added, a, b = (translator.places[each] for each in node.args)
    product = _product(translator, node, a, b)
    result = translator.new_like(node)
    translator.pointwise([product, added], "({0} + {1})".format, result)
    translator.places[node] = result
    return True


def _product(translator: Any, node: torch.fx.Node, a: Place, b: Place) -> Place:
    m, n = node.meta["val"].shape
    k = a.shape[1]
    a, b = _usable(translator, a), _usable(translator, b)
    result = translator.new((m, n), torch.float32)
    if not k:
        translator.pointwise([0], "{0}".format, result)
        return result
    text = f"abele::product({m}, {n}, {k}, {{0}}, {_steps(a)}, {{1}}, {_steps(b)}, 0, {{2}}, {n})"
    translator.add(Call(0, [a, b], [result], text, m * n * k))
    return result


def _usable(translator: Any, matrix: Place) -> Place:
    """A matrix with rows or columns whose elements are neighbours."""
    (rows, columns), (row, column) = matrix.shape, matrix.stride
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return matrix
    if (row == 1 or rows == 1) and (column >= rows or columns == 1):
        return matrix
    return translator.contiguous(matrix)


def _steps(matrix: Place) -> str:
    (rows, columns), (row, column) = matrix.shape, matrix.stride
    # The step along a dimension of one element says nothing, and may be anything.
    if columns == 1 and rows == 1:
        return "1, 1"
    if columns == 1:
        return f"1, {max(rows, 1)}" if row == 1 else f"{row}, 1"
    if rows == 1:
        return f"{max(columns, 1)}, 1" if column == 1 else f"1, {column}"
    return f"{row}, {column}"


HANDLERS = {aten.mm.default: mm, aten.addmm.default: addmm}

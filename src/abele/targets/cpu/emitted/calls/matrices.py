"""Matrix multiplications as calls of a GEMM kernel or torch's BLAS."""

from __future__ import annotations

from typing import Any

import torch

from abele._torch import linear_with_bias
from abele.ops import half_products
from abele.targets.cpu.emitted.calls import products
from abele.targets.cpu.emitted.calls.sixteen_bits import in_16_bits
from abele.targets.translation.movement import arguments, options, selected, turned
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Place

aten = torch.ops.aten

_FLOAT = {torch.float32}
# Multiply-adds that are worth waking a thread.
_WORK_PER_THREAD = 60000


def mm(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.mm`` to a GEMM call."""
    a, b = (translator.places[each] for each in arguments(node))
    if not _computable(node):
        return _of_bfloat16(translator, a, b)
    return multiplied(translator, a, b)


def addmm(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.addmm`` to a GEMM call and a sum that may be fused into a loop."""
    if not _computable(node):
        return None
    added, a, b = (translator.places[each] for each in arguments(node))
    if _is_constant_layer(translator, node, added, a, b):
        a, b = usable(translator, a), usable(translator, b)
        (user, *others) = node.users or (node,)
        relu = user if user.target is aten.relu.default and not others else None
        bounds = products.bounds(0.0) if relu else products.UNBOUNDED
        result = products.clamped(translator, a, b, [added], bounds)
        if relu:
            translator.places[relu] = result
        return result
    product = multiplied(translator, a, b)
    result = translator.new_like(node)
    return _added(translator, node, product, added, result)


def linear(translator: Any, node: torch.fx.Node) -> Any:
    """Translate a linear layer that ``biases_in_products`` made, if its weight is constant."""
    *tensors, activation, _, _ = arguments(node)
    x, weight, bias = (each and translator.places[each] for each in tensors)
    return _of_bfloat16(translator, x, turned(weight), bias) if activation == "none" else None


def _of_bfloat16(translator: Any, a: Place, b: Place, bias: Place | None = None) -> Place | None:
    """Return the product of bfloat16 matrices if our kernel computes it, else None."""
    given = [each for each in (a, b, bias) if each is not None]
    fixed = {each.buffer for each in given[1:]} <= translator.fixed
    narrow = all(each.dtype is torch.bfloat16 and each.size for each in given)
    own = half_products.has_bfloat16_products() and not half_products.has_bfloat16_tiles()
    if not (fixed and narrow and own) or b.shape[0] % 2:
        return None
    return products.bfloat16_layer(translator, a, b, bias)


def _is_constant_layer(
    translator: Any, node: torch.fx.Node, bias: Place, a: Place, b: Place
) -> bool:
    """Return whether weight and bias of a linear layer change only between calls."""
    fixed = {bias.buffer, b.buffer} <= translator.fixed and bias.contiguous
    narrow = [in_16_bits(translator, each).dtype for each in (a, b)]
    plain = {*narrow, bias.dtype} == _FLOAT and not options(node)
    return fixed and plain and bias.shape == b.shape[1:] and a.shape[1] > 0


def bmm(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.bmm`` to a batched GEMM call."""
    if not _computable(node):
        return None
    a, b = (translator.places[each] for each in arguments(node))
    return _products(translator, node, a, b)


def baddbmm(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.baddbmm`` to a batched GEMM call and an elementwise sum."""
    if not _computable(node):
        return None
    added, a, b = (translator.places[each] for each in arguments(node))
    product = _products(translator, node, a, b)
    return _added(translator, node, product, added, translator.new_like(node))


def _computable(node: torch.fx.Node) -> bool:
    value = node.meta["val"]
    return value.dtype in (torch.float32, torch.float64) and bool(value.numel())


def _added(
    translator: Any, node: torch.fx.Node, product: Place, added: Place, result: Place
) -> Place:
    beta, alpha = (options(node).get(name, 1) for name in ("beta", "alpha"))
    if beta == 0:  # what is added does not matter then, not even its NaN
        translator.pointwise([product, alpha], "({0} * {1})".format, result)
    elif alpha == 1 and beta == 1:
        translator.pointwise([product, added], "({0} + {1})".format, result)
    else:
        operands = [product, added, alpha, beta]
        translator.pointwise(operands, "({0} * {2} + {1} * {3})".format, result)
    return result


def _products(translator: Any, node: torch.fx.Node, a: Place, b: Place) -> Place:
    count, m, n = node.meta["val"].shape
    k = a.shape[2]
    if count == 1:  # passes over products expect matrices of two dimensions where there is one
        result = multiplied(translator, selected(a, 0, 0), selected(b, 0, 0))
        return Place(result.buffer, (1, m, n), (m * n, *result.stride), result.offset)
    result = translator.new((count, m, n), node.meta["val"].dtype)
    if not k:
        translator.pointwise([0], "{0}".format, result)
        return result
    narrow = [in_16_bits(translator, each) for each in (a, b)]
    ours = products.is_ours(result.dtype, m, n, k) or products.has_narrow_factor(*narrow)
    a, b = (_usable_batch(translator, each) for each in (narrow if ours else (a, b)))
    if ours:
        first, second = (f"{each.stride[0]}, {_steps(selected(each, 0, 0))}" for each in (a, b))
        translator.add(products.product(a, b, result, count, (first, second)))
        return result
    most = max(1, min(count, count * m * n * k // _WORK_PER_THREAD))
    steps = [f"{each.stride[0]}, {_steps(selected(each, 0, 0))}" for each in (a, b)]
    text = (
        f"abele::products<{most}>({count}, {m}, {n}, {k}, {{0}}, {steps[0]}, {{1}}, {steps[1]}, "
        "{2}, threads)"
    )
    translator.add(Call([a, b], [result], text))
    return result


def _usable_batch(translator: Any, matrices: Place) -> Place:
    first = selected(matrices, 0, 0)
    return matrices if _is_usable(first) else translator.contiguous(matrices)


def multiplied(translator: Any, a: Place, b: Place) -> Place:
    """Add the GEMM of two matrices and return its result.

    Args:
        translator: receives the operation.
        a: float32 or float64 ``[rows, inner]``.
        b: ``[inner, columns]``, of the same type.
    """
    (m, k), n = a.shape, b.shape[1]
    result = translator.new((m, n), a.dtype)
    if not k:
        translator.pointwise([0], "{0}".format, result)
        return result
    if k == 1 and min(m, n) > 1:  # without a sum it may become part of the loop that reads it
        translator.pointwise([a, b], "({0} * {1})".format, result)
        return result
    narrow = [in_16_bits(translator, each) for each in (a, b)]
    packs = b.buffer in translator.fixed and {each.dtype for each in (*narrow, result)} == _FLOAT
    ours = packs or products.is_ours(result.dtype, m, n, k) or products.has_narrow_factor(*narrow)
    a, b = (usable(translator, each) for each in (narrow if ours else (a, b)))
    if packs:
        steps = f"0, {_steps(a)}", "0, 0, 0"
        packed = products.packed_factor(translator, b)
        translator.add(products.product(a, packed, result, 1, steps, packed=True))
        return result
    if ours:
        steps = f"0, {_steps(a)}", f"0, {_steps(b)}"
        translator.add(products.product(a, b, result, 1, steps))
        return result
    text = f"abele::product({m}, {n}, {k}, {{0}}, {_steps(a)}, {{1}}, {_steps(b)}, {{2}})"
    translator.add(Call([a, b], [result], text))
    return result


def usable(translator: Any, matrix: Place) -> Place:
    """Return a matrix for a GEMM, copied unless its rows or columns are contiguous."""
    return matrix if _is_usable(matrix) else translator.contiguous(matrix)


def _is_usable(matrix: Place) -> bool:
    (rows, columns), (row, column) = matrix.shape, matrix.stride
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return True
    return (row == 1 or rows == 1) and (column >= rows or columns == 1)


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


HANDLERS = {
    aten.mm.default: mm,
    aten.addmm.default: addmm,
    aten.bmm.default: bmm,
    aten.baddbmm.default: baddbmm,
    linear_with_bias(): linear,
}

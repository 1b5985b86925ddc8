"""Biases apart from products, and their gradients apart from those of convolutions, on GPUs.

    y = addmm(bias, x, w)   ->   p = mm(x, w);  y = add(p, bias)
    dx, dw, db = convolution_backward(g, x, w, ..., [True, True, True])
->  dx, dw, _ = convolution_backward(g, x, w, ..., [True, True, False]);  db = sum(g, [0, 2, 3])

For the former torch calls cuBLASLt, whose kernels for few rows are slow: 64 x 1024 x 1024 takes
19 us and three small kernels on an H200, where cuBLAS takes 12. The sum joins the loop that
follows. Half products stay together: they would be rounded before the bias is added.

Torch sums each gradient of a bias in a kernel of its own, and cuDNN has no better one; ours join.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from abele.passes._edit import rewritten_where
from abele.program import Program

aten = torch.ops.aten

_PRODUCTS: dict[Any, Any] = {
    aten.addmm.default: aten.mm.default,
    aten.baddbmm.default: aten.bmm.default,
}
_TYPES = (torch.float32, torch.float64)


def gpu_biases(program: Program) -> Program:
    """Take biases and their gradients apart, also in bodies of loops."""
    program = rewritten_where(program, _is_plain, _split)
    return rewritten_where(program, _has_gradient, _sum_apart)


def _is_plain(node: torch.fx.Node) -> bool:
    if node.target not in _PRODUCTS or any(factor != 1 for factor in node.kwargs.values()):
        return False
    return node.meta["val"].dtype in _TYPES


def _split(node: torch.fx.Node) -> None:
    given: Any = node.args
    with node.graph.inserting_before(node):
        product = node.graph.call_function(_PRODUCTS[node.target], given[1:])
        result = node.graph.call_function(aten.add.Tensor, (product, given[0]))
    product.meta, result.meta = dict(node.meta), dict(node.meta)
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def _has_gradient(node: torch.fx.Node) -> bool:
    if node.target is not aten.convolution_backward.default:
        return False
    arguments: Any = node.args
    return arguments[-1][2] and arguments[0].meta["val"].dtype in _TYPES


def _sum_apart(node: torch.fx.Node) -> None:
    arguments: Any = node.args
    grad, mask = arguments[0], arguments[-1]
    of_image, of_weight, of_bias = node.meta["val"]
    dims = [d for d in range(grad.meta["val"].dim()) if d != 1]
    with node.graph.inserting_before(node):
        total = node.graph.call_function(aten.sum.dim_IntList, (grad, dims))
    total.meta = {**node.meta, "val": of_bias}
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == 2:
            user.replace_all_uses_with(total)
            node.graph.erase_node(user)
    node.args = (*arguments[:-1], [*mask[:2], False])
    node.meta["val"] = (of_image, of_weight, None)

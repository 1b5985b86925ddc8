"""Products with a bias as a product and a sum, on GPUs.

    y = addmm(bias, x, w)   ->   p = mm(x, w);  y = add(p, bias)

For the former torch calls cuBLASLt, whose kernels for few rows are slow: 64 x 1024 x 1024 takes
19 us and three small kernels on an H200, where cuBLAS takes 12. The sum joins the loop that
follows. Half products stay together: they would be rounded before the bias is added.
"""

from __future__ import annotations

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
    """Add biases apart from products, also in bodies of loops."""
    return rewritten_where(program, _is_plain, _split)


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

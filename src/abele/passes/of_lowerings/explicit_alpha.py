"""The factor ``alpha`` of an addition as a separate multiplication.

    c = add(a, b, alpha=2.0)   ->   m = mul(b, 2.0);  c = add(a, m)

Inductor of torch 2.13 fuses ``add(a, mm(x, y), alpha=2)`` into ``addmm(a, x, y)`` and loses the
factor: an SGD step with a constant learning rate would subtract the whole gradient. The fused
kernel is as fast either way.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from abele.passes._edit import editable, finished, substitute
from abele.program import Program, subgraphs

aten = torch.ops.aten


def explicit_alpha(program: Program) -> Program:
    """Replace additions with a factor; subtractions are not fused and stay."""
    graph = editable(program)
    _rewrite(graph)
    return finished(program, graph)


def _rewrite(graph: torch.fx.GraphModule) -> None:
    for node in graph.graph.nodes:
        alpha = node.kwargs.get("alpha", 1)
        if node.target is aten.add.Tensor and alpha != 1:
            left, right = node.args
            substitute(node, aten.add.Tensor, (left, _product(node, right, alpha)))
    for name, inner in list(subgraphs(graph)):
        # A copy: the program that was handed in keeps its own.
        rewritten = torch.fx.GraphModule(inner, copy.deepcopy(inner.graph))
        _rewrite(rewritten)
        rewritten.recompile()
        setattr(graph, name, rewritten)


def _product(node: torch.fx.Node, value: Any, alpha: Any) -> Any:
    """``value * alpha``, made just before ``node``."""
    if not isinstance(value, torch.fx.Node):
        return value * alpha
    with node.graph.inserting_before(node):
        product = node.graph.call_function(aten.mul.Tensor, (value, alpha))
    product.meta = {**node.meta, "val": value.meta["val"]}
    return product

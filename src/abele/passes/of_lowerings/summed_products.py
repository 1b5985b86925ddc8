"""One product of matrices instead of a sum of many.

    c = add(add(mm(t(a0), b0), mm(t(a1), b1)), mm(t(a2), b2))
->  c = mm(t(cat([a0, a1, a2])), cat([b0, b1, b2]))

The weight gradient of a recurrent layer is such a sum, with a product for each time step; one
product with all steps in its inner dimension is what libraries are fast at, and nothing is added up
in memory in between.
"""

from __future__ import annotations

from typing import Any

import torch

from abele.passes._edit import editable, finished
from abele.passes.dead_code import dead_code
from abele.program import Program, node_argument

aten = torch.ops.aten

_Node = torch.fx.Node

# Of two products the sum is as fast.
_LEAST_TERMS = 3
# Larger inner dimensions are fast by themselves, and joining them would copy them.
_LARGEST_INNER = 256


def summed_products(program: Program) -> Program:
    """Join the products that are only added to each other."""
    graph = editable(program)
    for node in reversed(list(graph.graph.nodes)):
        if _is_sum(node) and not _continues(node):
            products, others = _terms(node)
            if len(products) >= _LEAST_TERMS:
                _join(node, products, others)
    return dead_code(finished(program, graph))


def _is_sum(node: _Node) -> bool:
    return (
        node.target is aten.add.Tensor
        and not node.kwargs
        and all(isinstance(each, _Node) for each in node.args)
        and all(each.meta["val"].shape == node.meta["val"].shape for each in node.all_input_nodes)
        and node.meta["val"].dtype is torch.float32
    )


def _continues(node: _Node) -> bool:
    """Whether a sum is only a term of another one."""
    return len(node.users) == 1 and _is_sum(next(iter(node.users)))


def _terms(node: _Node) -> tuple[list[_Node], list[_Node]]:
    """The products that a sum adds, the last of the graph first, and everything else it adds.

    Backward goes through time steps from the last to the first; what it makes for them is often
    stacked in the order of time too, and then lies together already.
    """
    products: list[_Node] = []
    others: list[_Node] = []
    waiting = [node]
    while waiting:
        for term in reversed(waiting.pop().args):
            assert isinstance(term, _Node)
            if len(term.users) == 1 and _is_sum(term):
                waiting.append(term)
            elif len(term.users) == 1 and _is_narrow_product(term):
                products.append(term)
            else:
                others.append(term)
    return sorted(products, reverse=True), others[::-1]


def _is_narrow_product(node: _Node) -> bool:
    if node.target is not aten.mm.default:
        return False
    left, right = node_argument(node, 0), node_argument(node, 1)
    if left.target is not aten.t.default:
        return False
    inner = right.meta["val"].shape[0]
    tensors = (node_argument(left, 0).meta["val"], right.meta["val"])
    return 0 < inner <= _LARGEST_INNER and all(each.is_contiguous() for each in tensors)


def _join(node: _Node, products: list[_Node], others: list[_Node]) -> None:
    graph = node.graph
    with graph.inserting_before(node):
        lefts = _joined(graph, [node_argument(node_argument(each, 0), 0) for each in products])
        rights = _joined(graph, [node_argument(each, 1) for each in products])
        turned = _made(graph, node, aten.t.default, (lefts,), lefts.meta["val"].t())
        result = _made(graph, node, aten.mm.default, (turned, rights), node.meta["val"])
        for each in others:
            result = _made(graph, node, aten.add.Tensor, (result, each), node.meta["val"])
    node.replace_all_uses_with(result)


def _joined(graph: torch.fx.Graph, rows: list[_Node]) -> _Node:
    value = torch.cat([each.meta["val"] for each in rows])
    return _made(graph, rows[-1], aten.cat.default, (rows,), value)


def _made(graph: torch.fx.Graph, like: _Node, target: Any, arguments: Any, value: Any) -> _Node:
    node = graph.call_function(target, arguments)
    node.meta = {**like.meta, "val": value}
    return node

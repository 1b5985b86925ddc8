"""Gradients of all slices of a tensor, as one stack instead of a sum of tensors full of zeros.

    c = add(add(select_backward(q, 0, 0), select_backward(k, 0, 1)), select_backward(v, 0, 2))
->  c = stack([q, k, v])

That is how the gradient of what attention's queries, keys and values are slices of arrives.
"""

from __future__ import annotations

import torch

from abele.passes._edit import editable, finished
from abele.passes.dead_code import dead_code
from abele.program import Program, node_argument

aten = torch.ops.aten


def stacked_gradients(program: Program) -> Program:
    """Stack gradients of slices that together are a whole tensor."""
    graph = editable(program)
    for node in reversed(list(graph.graph.nodes)):
        slices = _slices(node) if _is_sum(node) else None
        if slices is None:
            continue
        dim, gradients = slices
        with graph.graph.inserting_before(node):
            stack = graph.graph.call_function(aten.stack.default, (gradients, dim))
        stack.meta = dict(node.meta)
        node.replace_all_uses_with(stack)
    return dead_code(finished(program, graph))


def _slices(node: torch.fx.Node) -> tuple[int, list[torch.fx.Node]] | None:
    """The dimension and the gradients of all slices along it, if a node is their sum."""
    value, terms = node.meta["val"], _terms(node)
    gradients: dict[int, torch.fx.Node] = {}
    dims: set[int] = set()
    for term in terms:
        if term.target is not aten.select_backward.default:
            return None
        _, _, dim, index = term.args
        assert isinstance(dim, int)
        assert isinstance(index, int)
        dims.add(dim % value.dim())
        gradients[index % value.shape[dim]] = node_argument(term, 0)
    if len(dims) != 1 or len(gradients) != len(terms) or not value.is_contiguous():
        return None
    (dim,) = dims
    if len(gradients) != value.shape[dim]:
        return None
    return dim, [gradients[index] for index in range(len(gradients))]


def _terms(node: torch.fx.Node) -> list[torch.fx.Node]:
    """What a sum of equal tensors adds, where nothing else needs its parts."""
    terms: list[torch.fx.Node] = []
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if _is_sum(each) and (each is node or len(each.users) == 1):
            waiting += each.all_input_nodes
        else:
            terms.append(each)
    return terms


def _is_sum(node: torch.fx.Node) -> bool:
    if node.target is not aten.add.Tensor or node.kwargs or len(node.all_input_nodes) != 2:
        return False
    values = [node.meta["val"], *(each.meta["val"] for each in node.all_input_nodes)]
    return len({(each.shape, each.dtype) for each in values}) == 1

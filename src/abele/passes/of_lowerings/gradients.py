"""Stacks of the gradients of slices, for emitted code."""

from __future__ import annotations

import torch

from abele.passes._edit import editable, finished
from abele.passes.cleanup import dead_code
from abele.program import Program, node_argument

aten = torch.ops.aten


def stacked_gradients(program: Program) -> Program:
    """Replace sums of the gradients of all slices of a tensor by a stack."""
    graph = editable(program)
    for node in reversed(list(graph.graph.nodes)):
        slices = _slices(node) if _is_plain_sum(node) else None
        if slices is None:
            continue
        dim, gradients = slices
        with graph.graph.inserting_before(node):
            stack = graph.graph.call_function(aten.stack.default, (gradients, dim))
        stack.meta = dict(node.meta)
        node.replace_all_uses_with(stack)
    return dead_code(finished(program, graph))


def _slices(node: torch.fx.Node) -> tuple[int, list[torch.fx.Node]] | None:
    """Return dimension and gradients of all slices, if a node sums the gradients of all slices."""
    value, terms = node.meta["val"], _terms_of_sum(node)
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


def _terms_of_sum(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the leaves of a tree of additions whose partial sums have no other reader."""
    terms: list[torch.fx.Node] = []
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if _is_plain_sum(each) and (each is node or len(each.users) == 1):
            waiting += each.all_input_nodes
        else:
            terms.append(each)
    return terms


def _is_plain_sum(node: torch.fx.Node) -> bool:
    if node.target is not aten.add.Tensor or node.kwargs or len(node.all_input_nodes) != 2:
        return False
    values = [node.meta["val"], *(each.meta["val"] for each in node.all_input_nodes)]
    return len({(each.shape, each.dtype) for each in values}) == 1

"""Rewrites of gradients for emitted code: stacked slice gradients, saved GELU derivatives."""

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


# -- the derivative of GELU beside its result ------------------------------------------------------
#
#     y = gelu(x); ...; gx = gelu_backward(g, x)
# ->  y = gelu(x); d = gelu_backward(1, x); ...; gx = g * d
#
# Both need the same exponential and polynomial, which code computes once for the two. The tensor
# that is kept for the backward is as large as before, and the bits are the same.

_EXACT = (torch.float32, torch.float64)  # in half, the derivative would be rounded


def kept_derivatives(program: Program) -> Program:
    """Compute GELU derivatives in forward, if GELU and its backward alone read the input."""
    graph = editable(program)
    for node in graph.graph.find_nodes(op="call_function", target=aten.gelu_backward.default):
        forward = _forward_of(node)
        if forward is None:
            continue
        gradient, x = node_argument(node, 0), node_argument(node, 1)
        value = x.meta["val"]
        with graph.graph.inserting_before(forward.next):
            one = graph.graph.call_function(
                aten.full.default, (list(value.shape), 1.0), {"dtype": value.dtype}
            )
            derivative = graph.graph.call_function(node.target, (one, x), dict(node.kwargs))
        one.meta, derivative.meta = (dict(forward.meta) for _ in range(2))
        with graph.graph.inserting_before(node):
            product = graph.graph.call_function(aten.mul.Tensor, (gradient, derivative))
        product.meta = dict(node.meta)
        node.replace_all_uses_with(product)
        graph.graph.erase_node(node)
    return finished(program, graph)


def _forward_of(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the GELU of a GELU backward node, if its input has no other reader."""
    x = node_argument(node, 1)
    value = x.meta["val"]
    if x.op != "call_function" or value.dtype not in _EXACT or len(x.users) != 2:
        return None
    (other,) = (user for user in x.users if user is not node)
    same = other.target is aten.gelu.default and other.kwargs == node.kwargs
    return other if same and len(other.args) == 1 else None

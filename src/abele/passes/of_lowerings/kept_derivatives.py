"""The derivative of GELU beside its result, in place of its argument.

    y = gelu(x); ...; gx = gelu_backward(g, x)
->  y = gelu(x); d = gelu_backward(1, x); ...; gx = g * d

Both need the same exponential and polynomial, which code computes once for the two. What is kept
for the backward is as large as before, and the bits are the same.
"""

from __future__ import annotations

import torch

from abele.passes._edit import editable, finished
from abele.program import Program, node_argument

aten = torch.ops.aten

_EXACT = (torch.float32, torch.float64)  # in half, the derivative would be rounded


def kept_derivatives(program: Program) -> Program:
    """Compute derivatives of GELU where its result is, if only they need its argument."""
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
    """Return the GELU whose backward a node is, if nothing else reads the GELU's argument."""
    x = node_argument(node, 1)
    value = x.meta["val"]
    if x.op != "call_function" or value.dtype not in _EXACT or len(x.users) != 2:
        return None
    (other,) = (user for user in x.users if user is not node)
    same = other.target is aten.gelu.default and other.kwargs == node.kwargs
    return other if same and len(other.args) == 1 else None

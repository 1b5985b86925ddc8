"""Values that are known while a forward is captured, because no input or state is in them."""

from __future__ import annotations

import torch

from abele import _torch, losses
from abele._torch import OpOverload
from abele.program import is_getitem, writes


def constant_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """The value of a tensor of the trace under way if it is computed from constants, else None."""
    node, mode = _torch.traced_node(tensor), _torch.get_proxy_mode()
    if node is None or mode is None:
        return None if isinstance(tensor, _torch.FakeTensor) else tensor
    return computed(node, mode.tracer)


def computed(node: torch.fx.Node, tracer: torch.fx.Tracer) -> torch.Tensor | None:
    """The value of a node of a trace if it is computed from constants, else None."""
    needed = {node, *losses.ancestors(node)}
    if not all(map(_computes_the_same_now, needed)):
        return None
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for each in tracer.graph.nodes:
        if each in needed:
            copies[each] = graph.node_copy(each, lambda old: copies[old])
    graph.output(copies[node])
    with _torch.outside_the_trace():
        return torch.fx.GraphModule(tracer.root, graph)()


def _computes_the_same_now(node: torch.fx.Node) -> bool:
    """Whether it is a constant or an operation that neither draws numbers nor is written to."""
    tags = getattr(node.target, "tags", ())
    written = any(writes(user) for user in node.users)
    return (
        (node.op == "get_attr" or is_getitem(node) or _is_of_torch(node))
        and torch.Tag.nondeterministic_seeded not in tags
        and not written
        and not writes(node)
    )


def _is_of_torch(node: torch.fx.Node) -> bool:
    """Others, such as calls of the host and prints, may do anything each time they run."""
    return isinstance(node.target, OpOverload) and node.target.namespace == "aten"

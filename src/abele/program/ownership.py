"""What a captured program holds and returns is its own: nobody else's memory is part of it."""

from __future__ import annotations

import torch

from abele.errors import CaptureError
from abele.program.aliasing import SHARES, base
from abele.program.core import all_nodes, output_node, returned_nodes, writes
from abele.program.dense import INSTEAD, other_kind

aten = torch.ops.aten


def own_constants(graph: torch.fx.GraphModule) -> None:
    """Copies the tensors that forward used without owning them.

    The caller may write into them later, and a program computes with what they held when it was
    captured, on every target.

    Raises:
        CaptureError: one of them is not dense.
    """
    for module in graph.modules():
        tensors = [
            *module.named_parameters(recurse=False, remove_duplicate=False),
            *module.named_buffers(recurse=False, remove_duplicate=False),
        ]
        for name, value in tensors:
            kind = other_kind(value)
            if kind is not None:
                raise CaptureError(
                    "forward uses a tensor that is neither a parameter nor a buffer and is "
                    f"{kind}; a program keeps dense tensors. {INSTEAD}"
                )
            delattr(module, name)
            module.register_buffer(name, value.detach().clone())
    for node in all_nodes(graph):
        node.meta.pop(SHARES, None)  # each has memory of its own now


def own_outputs(graph: torch.fx.GraphModule) -> None:
    """Clones outputs that share memory with an input, a constant or an earlier output."""
    returned = returned_nodes(graph)
    taken: set[torch.fx.Node] = set()
    for index, node in enumerate(returned):
        memory = base(node)
        if memory.op in ("placeholder", "get_attr") or memory in taken:
            with graph.graph.inserting_before(_first_write(graph)):
                copy = graph.graph.call_function(aten.clone.default, (node,))
            # A copy of what is expanded has elements of its own, so it lies in another order.
            copy.meta = dict(node.meta) | {"val": aten.clone.default(node.meta["val"])}
            returned[index] = copy
        taken.add(memory)
    output_node(graph).args = (returned,)
    graph.recompile()


def _first_write(graph: torch.fx.GraphModule) -> torch.fx.Node:
    return next(node for node in graph.graph.nodes if writes(node) or node.op == "output")

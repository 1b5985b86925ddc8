"""How a value passes from one program to another: dense, in the order in which it lies in memory.

Compiled programs take dense row-major tensors, so permuted memory is handed over as the row-major
tensor it is, and permuted back by who receives it.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten


def memory_order(value: torch.Tensor) -> list[int]:
    """The dimensions from the outermost in memory to the innermost.

    As they are where that would not make the tensor dense; it is copied then.
    """
    order = sorted(range(value.dim()), key=lambda i: (-value.stride(i), -value.shape[i], i))
    if value.is_contiguous() or not value.permute(order).is_contiguous():
        return list(range(value.dim()))
    return order


def in_memory_order(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    """What the giving program returns in place of ``node``, added at the end of its graph."""
    value = node.meta["val"]
    order = memory_order(value)
    if order != sorted(order):
        made = graph.call_function(aten.permute.default, (node, order))
    elif not value.is_contiguous():
        made = graph.call_function(
            aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
        )
    else:
        return node
    made.meta = dict(node.meta)
    made.meta["val"] = value.permute(order).contiguous()
    return made


def received(
    graph: torch.fx.Graph, placeholder: torch.fx.Node, node: torch.fx.Node
) -> torch.fx.Node:
    """What the receiving program uses in place of ``node``, of which it got the memory."""
    order = memory_order(node.meta["val"])
    if order == sorted(order):
        return placeholder
    inverse = [order.index(i) for i in range(len(order))]
    restored = graph.call_function(aten.permute.default, (placeholder, inverse))
    restored.meta = dict(node.meta)
    return restored

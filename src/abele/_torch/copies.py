"""Copies of nodes and graphs, without what torch does for sizes that nobody knows.

``Graph.create_node`` looks through all arguments of every node for symbolic sizes, in Python, which
takes more than the rest of a copy. No graph here has any.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx.graph import CodeGen
from torch.fx.node import map_arg


def copied_node(
    graph: torch.fx.Graph,
    node: torch.fx.Node,
    copied: Callable[[torch.fx.Node], Any],
    meta: Mapping[str, Any] | None = None,
) -> torch.fx.Node:
    """Add a copy of a node to a graph, as ``graph.node_copy`` does.

    Args:
        graph: gets the copy where it inserts nodes at the moment.
        node: of any graph.
        copied: what takes the place of each node among the arguments.
        meta: of the copy, instead of the node's.
    """
    args: Any = map_arg(node.args, copied)
    kwargs: Any = map_arg(node.kwargs, copied)
    untyped: Any = graph
    name: str = untyped._graph_namespace.create_name(node.name, None)
    new = torch.fx.Node(graph, name, node.op, node.target, args, kwargs, node.type)
    untyped._graph_namespace.associate_name_with_obj(name, new)
    untyped._insert(new)
    untyped._find_nodes_lookup_table.insert(new)
    untyped._len += 1
    # Whoever sets an attribute of a node has torch look it up in its graph, twice.
    new.meta.update(node.meta if meta is None else meta)
    return new


def copied_graph(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Return a graph with copies of all nodes, which generates plain code."""
    new = torch.fx.Graph(tracer_cls=graph._tracer_cls)
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        copies[node] = copied_node(new, node, copies.__getitem__)
    new.set_codegen(CodeGen())
    return new

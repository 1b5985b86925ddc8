"""Fast copies of FX nodes and graphs, without torch's handling of symbolic sizes.

``Graph.create_node`` looks through all arguments of every node for symbolic sizes, in Python, which
takes more than the rest of a copy. No graph here has any.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, cast

import torch
from torch.fx.graph import CodeGen
from torch.fx.node import map_arg

from abele._torch import versions


def copied_node(
    graph: torch.fx.Graph,
    node: torch.fx.Node,
    copied: Callable[[torch.fx.Node], Any],
    meta: Mapping[str, Any] | None = None,
) -> torch.fx.Node:
    """Add a copy of a node to a graph, as ``graph.node_copy`` does.

    Args:
        graph: gets the copy at its current insertion point.
        node: of any graph.
        copied: returns the replacement of each node among the arguments.
        meta: of the copy, instead of the node's.
    """
    if not versions.tried:
        made = graph.node_copy(node, copied)
        made.meta = dict(node.meta if meta is None else meta)
        return made
    args: Any = map_arg(node.args, copied)
    kwargs: Any = map_arg(node.kwargs, copied)
    untyped: Any = graph
    name: str = untyped._graph_namespace.create_name(node.name, None)
    new = torch.fx.Node(graph, name, node.op, node.target, args, kwargs, node.type)
    _insert(new)
    # Whoever sets an attribute of a node has torch look it up in its graph, twice.
    new.meta.update(node.meta if meta is None else meta)
    return new


def new_call(
    graph: torch.fx.Graph, target: Any, args: tuple[Any, ...], meta: Mapping[str, Any]
) -> torch.fx.Node:
    """Add a call to a graph, as ``graph.call_function`` does.

    Args:
        graph: gets the node at its current insertion point.
        target: the called operator or function.
        args: its arguments, no symbolic sizes among them.
        meta: of the node.
    """
    if not versions.tried:
        made = graph.call_function(target, args)
        made.meta.update(meta)
        return made
    untyped: Any = graph
    name: str = untyped._graph_namespace.create_name(untyped._target_to_str(target), None)
    new = torch.fx.Node(graph, name, "call_function", target, args, {})
    _insert(new)
    new.meta.update(meta)
    return new


def _insert(new: torch.fx.Node) -> None:
    graph: Any = new.graph
    graph._graph_namespace.associate_name_with_obj(new.name, new)
    graph._insert(new)
    graph._find_nodes_lookup_table.insert(new)
    graph._len += 1


def copied_graph(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Copy an FX graph with all nodes; the copy generates plain code.

    Node names of a graph are valid and unique, so copies have them without checks.
    """
    if not versions.tried:
        plain = deepcopy(graph)
        plain.set_codegen(CodeGen())
        return plain
    new = torch.fx.Graph(tracer_cls=graph._tracer_cls)
    untyped: Any = new
    insert = untyped._root._prepend
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    copied = copies.__getitem__
    for node in graph.nodes:
        old: Any = node
        args: Any = map_arg(node.args, copied)
        kwargs: Any = map_arg(node.kwargs, copied) if old._kwargs else old._kwargs
        copy = torch.fx.Node(new, node.name, node.op, node.target, args, kwargs, node.type)
        insert(copy)
        copy.meta.update(node.meta)
        copies[node] = copy
    _note_copies(new, graph, copies)
    new.set_codegen(CodeGen())
    return new


def _note_copies(
    new: torch.fx.Graph, graph: torch.fx.Graph, copies: Mapping[torch.fx.Node, torch.fx.Node]
) -> None:
    """Register copied nodes in a graph's bookkeeping, as if each had been created in it."""
    untyped: Any = new
    untyped._len = len(copies)
    table = untyped._find_nodes_lookup_table.table
    for key, nodes in cast("Any", graph)._find_nodes_lookup_table.table.items():
        table[key] = {copies[node]: None for node in nodes}
    names = untyped._graph_namespace
    names._obj_to_name = {copy: copy.name for copy in copies.values()}
    names._used_names.update(names._obj_to_name.values())
    for name in names._obj_to_name.values():  # where the names of further nodes go on counting
        base, _, number = name.rpartition("_")
        if base and number.isdecimal():
            names._base_count[base] = int(number)
        else:
            names._base_count.setdefault(name, 0)


def called_targets(graph: torch.fx.Graph) -> list[Any]:
    """Return the distinct call targets of a graph."""
    if not versions.tried:
        called = (node.target for node in graph.nodes if node.op == "call_function")
        return list(dict.fromkeys(called))
    untyped: Any = graph
    table = untyped._find_nodes_lookup_table.table
    return [target for (op, target), nodes in table.items() if op == "call_function" and nodes]

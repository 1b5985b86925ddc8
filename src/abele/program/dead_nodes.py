"""Nodes that nothing reads leave a graph.

``Graph.eliminate_dead_code`` also checks the order of all nodes before, which takes twenty times as
long; whoever changed a graph checks it when it is done.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from abele.program.core import subgraphs, writes


def erase_dead_nodes(
    graph: torch.fx.GraphModule, stays: Callable[[torch.fx.Node], bool] = torch.fx.Node.is_impure
) -> None:
    """Erase the nodes of a graph that nothing reads, then those that only they read, and so on.

    Args:
        graph: changed in place; its nodes stand before those that read them. The bodies of its
            loops and branches are cleared too.
        stays: whether a node is there for another reason than its value; by default, what torch
            knows of its operator. Bodies are always asked that.
    """
    for node in reversed(graph.graph.nodes):
        if not node.users and not stays(node):
            graph.graph.erase_node(node)
    for _, inner in subgraphs(graph):
        erase_dead_nodes(inner)
        inner.recompile()


def stays_in_program(node: torch.fx.Node) -> bool:
    """Whether a node of a program is an input, the output, or a write of new state."""
    return node.op in ("placeholder", "output") or writes(node)

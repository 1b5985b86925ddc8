"""Data dependencies that keep prints and host calls in the order of forward.

    a = print(x, None, ...); b = print(y, None, ...)   ->   b = print(y, a, ...)

Each such node takes a result of the previous one as its argument ``after`` and ignores the value.
Every compiler respects such a dependency.
"""

from __future__ import annotations

import operator

import torch

from abele.passes._edit import editable, finished
from abele.program import Program, calls_effect, has_effect, is_getitem


def effects_in_order(program: Program) -> Program:
    """Chain the nodes with effects."""
    if not calls_effect(program.graph.graph):
        return program
    graph = editable(program)
    before: torch.fx.Node | None = None
    for node in list(graph.graph.nodes):
        if not has_effect(node):
            continue
        if before is not None:
            node.args = (node.args[0], before, *node.args[2:])
        before = _tensor(node)
    return finished(program, graph)


def _tensor(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node's result, or the first of several."""
    if isinstance(node.meta["val"], torch.Tensor):
        return node
    for user in node.users:
        if is_getitem(user) and user.args[1] == 0 and user.prev is node:
            return user
    with node.graph.inserting_after(node):
        first = node.graph.call_function(operator.getitem, (node, 0))
    first.meta = {**node.meta, "val": node.meta["val"][0]}
    return first

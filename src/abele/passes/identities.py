"""Removal of operations that return their argument.

    b = detach(a); c = t(t(b)); d = copy(old, c)   ->   d = a

``copy`` is how functionalisation writes ``old.copy_(c)``: its value is ``c`` in the layout of
``old``, so it goes only where dtype, shape and strides agree already.
"""

from __future__ import annotations

from typing import Any

import torch

from abele.passes._edit import editable, finished
from abele.program import Program, node_argument
from abele.program.aliasing import base

aten = torch.ops.aten


def identities(program: Program) -> Program:
    """Replace each identity by its argument."""
    graph = editable(program)
    for node in graph.graph.nodes:
        same = _same_as(node)
        if same is not None:
            node.replace_all_uses_with(same)
            graph.graph.erase_node(node)
    return finished(program, graph)


def _same_as(node: torch.fx.Node) -> torch.fx.Node | None:
    if node.target in (aten.detach.default, aten.alias.default):
        return node_argument(node, 0)
    if node.target is aten.t.default:
        inner = node_argument(node, 0)
        return node_argument(inner, 0) if inner.target is aten.t.default else None
    if node.target is aten.copy.default:
        source = node_argument(node, 1)
        if base(source).op == "placeholder":
            return None  # the slot may be overwritten before the final copy reads it
        return source if _layout(source) == _layout(node) else None
    return None


def _layout(node: torch.fx.Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return value.dtype, value.device, tuple(value.shape), value.stride()

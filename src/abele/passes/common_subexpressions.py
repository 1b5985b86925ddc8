"""Merging equal operations, so that each is computed once.

    a = to_copy(lr); p = f(p, a); b = to_copy(lr); q = f(q, b)   ->   one to_copy, used twice

Random operations, writes and effects are never merged.
"""

from __future__ import annotations

from typing import Any

import torch

from abele._torch import OpOverload
from abele.containers import is_dict, is_sequence
from abele.passes._edit import editable, finished
from abele.program import Program, has_effect, has_tag, is_getitem, returned_nodes, writes
from abele.storage.values import bits


def common_subexpressions(program: Program) -> Program:
    """Merge nodes with the same target and arguments."""
    graph = editable(program)
    returned = set(returned_nodes(graph))
    seen: dict[Any, torch.fx.Node] = {}
    mergeable: dict[int, bool] = {}  # by what is called, whose hash torch computes in Python
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        called = id(node.target)
        if called not in mergeable:
            mergeable[called] = _mergeable(node)
        # Results keep their own storage: two outputs of a program must not alias.
        if not mergeable[called] or node in returned:
            continue
        key = (called, _key(node.args), _key(node.kwargs) if node.kwargs else ())
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.graph.erase_node(node)
    return finished(program, graph)


def _mergeable(node: torch.fx.Node) -> bool:
    if not isinstance(node.target, OpOverload) and not is_getitem(node):
        return False  # loops and branches: random operations may hide inside
    return not (
        writes(node) or has_effect(node) or has_tag(node, torch.Tag.nondeterministic_seeded)
    )


def _key(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return value
    if is_sequence(value):
        return tuple(map(_key, value))
    if is_dict(value):
        return tuple(sorted((name, _key(item)) for name, item in value.items()))
    return bits(value)

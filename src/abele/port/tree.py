"""Walks through syntax trees: a node's children, without the copies that libcst makes for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import libcst as cst

_FIELDS: dict[type[cst.CSTNode], tuple[str, ...]] = {}
#: Their field for a format is visited only where there is one, so one node does not say it of all.
_VARYING = frozenset(("FormattedStringExpression", "TemplatedStringExpression"))


class _Fields(cst.CSTVisitor):
    """Notes the fields of one node in the order of the text, which is not that of the class."""

    def __init__(self, node: cst.CSTNode) -> None:
        super().__init__()
        self._node = node
        self.names: list[str] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node is self._node

    def on_visit_attribute(self, node: cst.CSTNode, attribute: str) -> None:
        if node is self._node:
            self.names.append(attribute)


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return ``node.children``, ten times as fast."""
    kind = type(node)
    if kind.__name__ in _VARYING:
        return list(node.children)
    if kind not in _FIELDS:
        fields = _Fields(node)
        node.visit(fields)
        _FIELDS[kind] = tuple(fields.names)
    nodes: list[cst.CSTNode] = []
    for name in _FIELDS[kind]:
        value: Any = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            nodes.append(value)
        elif isinstance(value, list | tuple):
            nodes.extend(cast("Sequence[cst.CSTNode]", value))
    return nodes


def parents(root: cst.CSTNode) -> dict[cst.CSTNode, cst.CSTNode]:
    """Return the parent of each node below a root."""
    above: dict[cst.CSTNode, cst.CSTNode] = {}
    rest = [root]
    while rest:
        node = rest.pop()
        inner = children(node)
        above.update(dict.fromkeys(inner, node))
        rest.extend(inner)
    return above


def visit(node: cst.CSTNode, visitor: cst.CSTVisitor) -> None:
    """Visit a node like ``node.visit(visitor)``, without libcst's copies.

    Methods of the visitor that are called for attributes of nodes are left out.
    """
    if visitor.on_visit(node):
        for each in children(node):
            visit(each, visitor)
    visitor.on_leave(node)


def walk(root: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and its descendants in source order."""
    yield root
    for each in children(root):
        yield from walk(each)

"""Searches syntax trees for nodes, and caches the walk through each tree."""

from __future__ import annotations

import functools
from typing import Any, cast

import libcst as cst
from libcst import matchers as m

#: Nodes by the name of their class, with their positions.
_Nodes = dict[str, list[tuple[int, cst.CSTNode]]]
_PIECES = 4096  # that are remembered
_ANYTHING = m.DoNotCare()


def findall(node: cst.CSTNode, matcher: Any) -> list[Any]:
    """Nodes of a piece that match, in the order of the text; as ``libcst.matchers.findall``.

    Args:
        node: the piece, which may be one of the results.
        matcher: what a node has to match, or one of several joined with ``|``.
    """
    matchers: dict[str, list[Any]] = {}
    for each in getattr(matcher, "options", (matcher,)):
        matchers.setdefault(type(each).__name__, []).append(each)
    nodes = _inside(node)
    matches = [
        (position, each)
        for name, options in matchers.items()
        for position, each in nodes.get(name, ())
        if _matches(each, options)
    ]
    if _matches(node, matchers.get(type(node).__name__, [])):
        matches.append((-1, node))
    return [each for _, each in sorted(matches, key=lambda pair: pair[0])]


def _matches(node: cst.CSTNode, options: list[Any]) -> bool:
    """Return whether a node matches any matcher of its class."""
    return any(_is_any(each) or m.matches(node, each) for each in options)


def _is_any(matcher: Any) -> bool:
    """Return whether a matcher accepts every node of its class, faster than libcst does."""
    fields = cast("dict[str, Any]", vars(matcher))
    return all(each is _ANYTHING for each in fields.values())


@functools.lru_cache(_PIECES)
def _inside(node: cst.CSTNode) -> _Nodes:
    nodes: _Nodes = {}
    rest, position = [*node.children][::-1], 0
    while rest:
        each = rest.pop()
        nodes.setdefault(type(each).__name__, []).append((position, each))
        rest += [*each.children][::-1]
        position += 1
    return nodes

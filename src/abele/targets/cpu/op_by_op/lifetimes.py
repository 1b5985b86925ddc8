"""Which values of a graph may be overwritten by the operation that reads them last."""

from __future__ import annotations

import torch

from abele._torch import OpOverload
from abele.ops import norm_activation
from abele.program import is_getitem, is_view, writes

_Node = torch.fx.Node


class Lifetimes:
    """Where in a graph the memory of each value is used for the last time."""

    def __init__(self, graph: torch.fx.Graph):
        self._position = {node: index for index, node in enumerate(graph.nodes)}
        self._root: dict[_Node, _Node] = {}
        self._last: dict[_Node, int] = {}
        for node in graph.nodes:
            self._root[node] = self._find_root(node)
            self._note(self._root[node], node)
        # A normalisation may keep its argument for backward.
        self._kept = dict(self._last)
        for node in reversed(graph.nodes):
            if node.target is norm_activation.forward:
                root = self._root[node.args[0]]
                self._kept[root] = max(self._kept[root], self._kept[node])

    def position(self, node: _Node) -> int:
        """The node's place in the order of the graph."""
        return self._position[node]

    def may_overwrite(self, node: _Node, value: _Node) -> bool:
        """Whether ``node`` is the last to need ``value``, and nobody else owns its memory."""
        root = self._root[value]
        keeps = node.target is norm_activation.forward
        last = (self._last if keeps else self._kept)[root]
        fresh = root is value and value.op == "call_function"
        return fresh and last == self._position[node]

    def _note(self, root: _Node, node: _Node) -> None:
        uses = [self._position[user] for user in node.users]
        self._last[root] = max(self._last.get(root, 0), *uses, 0)

    def _find_root(self, node: _Node) -> _Node:
        """The node that made the memory in which a node's value lies."""
        if writes(node) or is_view(node):
            return self._root[node.args[0]]  # type: ignore[index]
        if is_getitem(node):
            origin: _Node = node.args[0]  # type: ignore[assignment]
            # What a normalisation keeps for backward is its result or its argument.
            shared = origin.target is norm_activation.forward
            fresh = isinstance(origin.target, OpOverload) and not is_view(origin) and not shared
            return node if fresh else self._root[origin]
        return node

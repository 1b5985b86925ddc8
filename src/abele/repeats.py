"""Traces the same function of other tensors once: the nodes are copied for the others.

A model has few layouts of parameters and many parameters, and tracing an operation costs some
twenty times what copying its node does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch

from abele import _torch

Nodes = list[torch.fx.Node]


class Repeats:
    """What was traced so far, by key and layout of the tensors."""

    def __init__(self):
        self._traced: dict[Hashable, tuple[Nodes, Nodes]] = {}

    def run(
        self, key: Hashable, function: Callable[[], None], tensors: Sequence[torch.Tensor]
    ) -> None:
        """Calls ``function``, or copies what an earlier call with the same key has traced.

        Args:
            key: of everything but ``tensors`` that decides what ``function`` does.
            function: returns nothing; writes to ``tensors`` in place.
            tensors: whatever it reads or writes that another call with this key does not.
        """
        given = [_torch.traced_node(tensor) for tensor in tensors]
        arguments = [node for node in given if node is not None]
        if len(set(arguments)) < len(tensors):
            function()  # nobody traces; or one tensor came twice, and where it is meant is unknown
            return
        layouts = tuple((t.dtype, t.device, t.shape, t.stride()) for t in tensors)
        found = self._traced.get((key, layouts))
        if found is None:
            last = next(iter(reversed(_torch.traced_nodes())))
            function()
            self._traced[key, layouts] = (arguments, _nodes_behind(last))
        else:
            _copy(*found, arguments)


def _nodes_behind(last: torch.fx.Node) -> Nodes:
    nodes: Nodes = []
    for node in reversed(_torch.traced_nodes()):
        if node is last:
            break
        nodes.append(node)
    return nodes[::-1]


def _copy(before: Nodes, nodes: Nodes, now: Nodes) -> None:
    # A tensor goes on to stand for the node it had: reading that after the writes of the copied
    # nodes is reading what they wrote.
    other = dict(zip(before, now, strict=True))
    for node in nodes:
        other[node] = node.graph.node_copy(node, lambda old: other.get(old, old))

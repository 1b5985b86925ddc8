"""Recurrent layers in a graph: how forward and backward belong together, and what they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from abele.ops import lstm, recurrent
from abele.program import is_getitem, node_argument

aten = torch.ops.aten

_Node = torch.fx.Node

_LSTM = "x", "w_ih", "w_hh", "b_ih", "b_hh", "h", "c"
_OTHERS = "x", "h", "w_ih", "w_hh", "b_ih", "b_hh"
_FORWARDS = lstm.forward, recurrent.forward
_BACKWARDS = lstm.backward, recurrent.backward
# The argument of backward that is a result of its forward.
_OF_FORWARD: dict[Any, int] = {lstm.backward: 13, recurrent.backward: 7}


class Layer:
    """A layer in one direction: its two nodes, of which one may be elsewhere, and what they say.

    Once another layer is written in another form, they say other things.

    Attributes:
        forward: the node, or None.
        backward: likewise.
        kind: ``lstm``, or what ``ops.recurrent`` knows.
        inputs: what the layer computes from, by name, in the order of backward's results.
        gradients: of the states, and of the last state or states, for backward; each may be None.
        reverse: from the last step to the first.
        has_biases: they are added; an LSTM is given zeros otherwise.
        trained: the weight of x has a gradient.
    """

    def __init__(self, forward: _Node | None, backward: _Node | None):
        one = forward or backward
        assert one is not None
        self.forward, self.backward, self.gradients = forward, backward, list[_Node | None]()
        arguments: Any = one.args
        self.inputs: dict[str, _Node]
        if one.target in (lstm.forward, lstm.backward):
            self.kind, self.trained = "lstm", True
            self.inputs = {name: node_argument(one, i) for i, name in enumerate(_LSTM)}
            place = 7 if one is forward else 14
            self.reverse, self.has_biases = map(bool, arguments[place : place + 2])
        else:
            self.kind, x, h, weights, self.reverse, self.trained = arguments[:6]
            self.inputs = dict(zip(_OTHERS, (x, h, *weights), strict=False))
            self.has_biases = "b_ih" in self.inputs
        if backward is not None:
            given: Any = backward.args[10:13] if self.kind == "lstm" else backward.args[8:10]
            self.gradients = list(given)

    def wanted(self) -> set[str]:
        """Names of the inputs whose gradients are read."""
        names = list(self.inputs)
        return set() if self.backward is None else {names[index(n)] for n in self.backward.users}


def nodes_of(graph: torch.fx.GraphModule) -> list[_Node]:
    """All nodes of layers, forward and backward, in order."""
    return [node for node in graph.graph.nodes if node.target in (*_FORWARDS, *_BACKWARDS)]


def pairs(graph: torch.fx.GraphModule) -> list[tuple[_Node | None, _Node | None]]:
    """Forward and backward of each layer; one of them may be elsewhere."""
    nodes = nodes_of(graph)
    backwards = [node for node in nodes if node.target in _BACKWARDS]
    both: list[tuple[_Node | None, _Node | None]] = []
    for forward in (node for node in nodes if node.target in _FORWARDS):
        backward = next((each for each in backwards if _forward_of(each) is forward), None)
        if backward is not None:
            backwards.remove(backward)
        both.append((forward, backward))
    return both + [(None, backward) for backward in backwards]


def _forward_of(backward: _Node) -> _Node | None:
    kept: Any = backward.args[_OF_FORWARD[backward.target]]
    made = kept.args[0] if is_getitem(kept) else None
    return made if isinstance(made, _Node) and made.target in _FORWARDS else None


def index(user: _Node) -> int:
    """Which result of an operator a node picks."""
    which: Any = user.args[1]
    return int(which)


def replace(node: _Node, results: Sequence[_Node | None]) -> None:
    """Let whoever picks results of a layer have others, which were made before it.

    Args:
        node: forward or backward of the layer.
        results: as many as are computed elsewhere now, each in its place; None: nobody reads it.
    """
    for user in list(node.users):
        made = results[index(user)] if index(user) < len(results) else None
        user.replace_all_uses_with(_laid_out(_bytes_for(user) if made is None else made, user))
        node.graph.erase_node(user)


def _bytes_for(user: _Node) -> _Node:
    """Zeros for what forward keeps, which only a backward elsewhere takes and does not read."""
    value = user.meta["val"]
    with user.graph.inserting_before(user):
        zeros = user.graph.call_function(
            aten.full.default, (list(value.shape), 0), {"dtype": value.dtype}
        )
    zeros.meta = dict(user.meta)
    return zeros


def _laid_out(made: _Node, like: _Node) -> _Node:
    """The value in the layout that was traced for its readers."""
    if made.meta["val"].stride() == like.meta["val"].stride():
        return made
    with like.graph.inserting_before(like):
        arranged = like.graph.call_function(
            aten.clone.default, (made,), {"memory_format": torch.contiguous_format}
        )
    arranged.meta = {**made.meta, "val": like.meta["val"]}
    arranged.meta.pop("tensor_meta", None)
    return arranged

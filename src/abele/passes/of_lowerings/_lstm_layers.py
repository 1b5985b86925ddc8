"""Layers of an LSTM in a graph: how forward and backward belong together, and what they return."""

from __future__ import annotations

from typing import Any

import torch

from abele.ops import lstm
from abele.program import is_getitem, node_argument

aten = torch.ops.aten

_Node = torch.fx.Node

#: x, weights, biases and state, of which there are gradients.
ARGUMENTS = 7
#: Arguments of backward: gradients of the three results, each of which may be None.
GRADIENTS = slice(10, 13)
_KEPT = 13  # argument of backward; result 3 of forward


def layers(graph: torch.fx.GraphModule) -> list[_Node]:
    """All nodes of layers, forward and backward, in order."""
    return [node for node in graph.graph.nodes if node.target in (lstm.forward, lstm.backward)]


def pairs(graph: torch.fx.GraphModule) -> list[tuple[_Node | None, _Node | None]]:
    """Forward and backward of each layer; one of them may be elsewhere."""
    nodes = layers(graph)
    backwards = [node for node in nodes if node.target is lstm.backward]
    both: list[tuple[_Node | None, _Node | None]] = []
    for forward in (node for node in nodes if node.target is lstm.forward):
        backward = next((each for each in backwards if _forward_of(each) is forward), None)
        if backward is not None:
            backwards.remove(backward)
        both.append((forward, backward))
    return both + [(None, backward) for backward in backwards]


def _forward_of(backward: _Node) -> _Node | None:
    """The node that kept what a backward reads."""
    kept: Any = backward.args[_KEPT]
    made = kept.args[0] if is_getitem(kept) else None
    return made if isinstance(made, _Node) and made.target is lstm.forward else None


def inputs_of(forward: _Node | None, backward: _Node | None) -> list[_Node]:
    """What a layer computes from."""
    one = forward or backward
    assert one is not None
    return [node_argument(one, index) for index in range(ARGUMENTS)]


def settings(forward: _Node | None, backward: _Node | None) -> tuple[bool, bool]:
    """Whether time runs backwards, and whether there are biases."""
    if forward is not None:
        return bool(forward.args[7]), bool(forward.args[8])
    assert backward is not None
    return bool(backward.args[14]), bool(backward.args[15])


def index(user: _Node) -> int:
    """Which result of an operator a node picks."""
    which: Any = user.args[1]
    return int(which)


def replace(node: _Node, results: dict[int, _Node]) -> None:
    """Let whoever picks results of a layer have others, which were made before it."""
    for user in list(node.users):
        made = results[index(user)] if index(user) in results else _bytes_for(user)
        user.replace_all_uses_with(_laid_out(made, user))
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

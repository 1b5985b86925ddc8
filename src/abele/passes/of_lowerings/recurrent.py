"""Lowering of recurrent layers to loop kernels."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.ops import lstm, recurrent, recurrent_loop
from abele.ops.recurrent_cells import CELLS
from abele.passes._edit import editable, finished, inserted
from abele.passes.cleanup import dead_code
from abele.program import Program, is_getitem, node_argument

aten = torch.ops.aten

_Node = torch.fx.Node

_LSTM = "x", "w_ih", "w_hh", "b_ih", "b_hh", "h", "c"
_OTHERS = "x", "h", "w_ih", "w_hh", "b_ih", "b_hh"
_FORWARDS = lstm.forward, recurrent.forward
_BACKWARDS = lstm.backward, recurrent.backward
# The argument of backward that is a result of its forward.
_OF_FORWARD: dict[Any, int] = {lstm.backward: 13, recurrent.backward: 7}


class Layer:
    """A recurrent layer in one direction, from its forward and backward nodes; one may be absent.

    Valid until another layer is lowered: nodes then have other arguments.

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
        """Return the names of the inputs whose gradients are read."""
        names = list(self.inputs)
        return set() if self.backward is None else {names[index(n)] for n in self.backward.users}


def nodes_of(graph: torch.fx.GraphModule) -> list[_Node]:
    """Return all forward and backward nodes of recurrent layers, in graph order."""
    return [node for node in graph.graph.nodes if node.target in (*_FORWARDS, *_BACKWARDS)]


def pairs(graph: torch.fx.GraphModule) -> list[tuple[_Node | None, _Node | None]]:
    """Return (forward, backward) of each recurrent layer; one is None if in another graph."""
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
    """Return the index of the result that a getitem node selects."""
    which: Any = user.args[1]
    return int(which)


def replace(node: _Node, results: Sequence[_Node | None]) -> None:
    """Replace the results of a recurrent layer's node by other nodes.

    Args:
        node: forward or backward of the layer.
        results: replacements by result index; None for a result without readers.
    """
    for user in list(node.users):
        made = results[index(user)] if index(user) < len(results) else None
        user.replace_all_uses_with(_laid_out(_bytes_for(user) if made is None else made, user))
        node.graph.erase_node(user)


def _bytes_for(user: _Node) -> _Node:
    """Insert zeros for saved bytes that only a backward in another graph accepts, unread."""
    value = user.meta["val"]
    with user.graph.inserting_before(user):
        zeros = user.graph.call_function(
            aten.full.default, (list(value.shape), 0), {"dtype": value.dtype}
        )
    zeros.meta = dict(user.meta)
    return zeros


def _laid_out(made: _Node, like: _Node) -> _Node:
    """Return a node's value with the strides that its readers were traced with."""
    if made.meta["val"].stride() == like.meta["val"].stride():
        return made
    with like.graph.inserting_before(like):
        arranged = like.graph.call_function(
            aten.clone.default, (made,), {"memory_format": torch.contiguous_format}
        )
    arranged.meta = {**made.meta, "val": like.meta["val"]}
    arranged.meta.pop("tensor_meta", None)
    return arranged


def recurrent_loops(program: Program) -> Program:
    """Lower all recurrent layers to loop kernels, except in bodies of loops."""
    if not nodes_of(program.graph):
        return program
    graph = editable(program)
    nodes = nodes_of(graph)
    for pair in pairs(graph):
        _write(Layer(*pair))
    for node in reversed(nodes):
        graph.graph.erase_node(node)
    return dead_code(finished(program, graph))


def _write(layer: Layer) -> None:
    loop = _Loop(layer)
    if layer.forward is not None:
        replace(layer.forward, loop.results())
    if layer.backward is not None:
        replace(layer.backward, _gradients(layer, layer.backward, loop))


class _Loop:
    """The loop kernel of a recurrent layer, inserted before the layer's first node."""

    def __init__(self, layer: Layer):
        before = layer.forward or layer.backward
        assert before is not None
        self._layer, self._make = layer, functools.partial(inserted, before)
        self._kept, x = layer.backward is not None, layer.inputs["x"]
        self.steps, self._batch, _ = x.meta["val"].shape
        self.rows = self._rows(x)
        weight = self._make(aten.t.default, layer.inputs["w_ih"])
        product = self._make(aten.mm.default, self.rows, weight)
        if layer.has_biases:
            product = self._make(aten.add.Tensor, product, layer.inputs["b_ih"])
        inputs = self._make(aten.view.default, product, [self.steps, self._batch, -1])
        bias = layer.inputs["b_hh"] if layer.has_biases else None
        state = layer.inputs["h"], layer.inputs.get("c")
        given = inputs, layer.inputs["w_hh"], bias, *state, layer.reverse, self._kept
        loop = self._make(recurrent_loop.forward, layer.kind, *given)
        self._results = _picked(self._make, loop, recurrent_loop.results(layer.kind))

    def _rows(self, x: _Node) -> _Node:
        """Reshape a tensor to ``[steps * batch, features]``, copied unless it is contiguous."""
        if not x.meta["val"].is_contiguous():
            x = self._make(aten.clone.default, x, memory_format=torch.contiguous_format)
        return self._make(aten.view.default, x, [self.steps * self._batch, -1])

    def backward(self, before: _Node) -> dict[str, _Node]:
        """Insert the loop's backward; return gradients of inputs, hidden products, h and c."""
        layer, make = self._layer, functools.partial(inserted, before)
        gradients = [*layer.gradients, None][:3]
        read = dict(self._results)
        if not CELLS[layer.kind].reads_h:
            read.pop("states")
        known = [read.get(name) for name in ("states", "cells", "gates")]
        given = *gradients, layer.inputs["w_hh"], *known, layer.reverse
        made = make(recurrent_loop.backward, layer.kind, *given)
        return _picked(make, made, recurrent_loop.gradients(layer.kind))

    def results(self) -> list[_Node]:
        """Return h after each step, and final h (and c of an LSTM)."""
        reverse, states = self._layer.reverse, self._results["states"]
        first, last = (0, 0) if reverse else (1, self.steps)
        after = self._make(aten.slice.Tensor, states, 0, first, first + self.steps)
        made = [after, self._make(aten.select.int, states, 0, last)]
        if "cells" in self._results:
            last = last if self._kept else 0
            made.append(self._make(aten.select.int, self._results["cells"], 0, last))
        return made

    def states_before(self, before: _Node) -> _Node:
        """Return h before each step, ``[steps * batch, units]``."""
        first, states = int(self._layer.reverse), self._results["states"]
        states = inserted(before, aten.slice.Tensor, states, 0, first, first + self.steps)
        return inserted(before, aten.view.default, states, [self.steps * self._batch, -1])


def _picked(make: Callable[..., _Node], made: _Node, names: list[str]) -> dict[str, _Node]:
    """Insert getitem nodes for the results of a node, by name."""
    return {name: make(operator.getitem, made, i) for i, name in enumerate(names)}


def _gradients(layer: Layer, node: _Node, loop: _Loop) -> list[_Node | None]:
    """Return the gradients that are read, in the order of the layer's inputs."""
    make, wanted = functools.partial(inserted, node), layer.wanted()
    made = loop.backward(node)
    inputs, count = made.pop("inputs"), loop.rows.meta["val"].shape[0]
    rows = make(aten.view.default, inputs, [count, -1])
    products = made.pop("products", None)
    of_state = rows if products is None else make(aten.view.default, products, [count, -1])
    if "x" in wanted:
        product = make(aten.mm.default, rows, layer.inputs["w_ih"])
        made["x"] = make(aten.view.default, product, list(layer.inputs["x"].meta["val"].shape))
    if "w_ih" in wanted:
        made["w_ih"] = make(aten.mm.default, make(aten.t.default, rows), loop.rows)
    if "w_hh" in wanted:
        columns = make(aten.t.default, of_state)
        made["w_hh"] = make(aten.mm.default, columns, loop.states_before(node))
    if "b_ih" in wanted:
        made["b_ih"] = _gradient_of_bias(node, rows, layer)
    if "b_hh" in wanted:
        same = of_state is rows and "b_ih" in made
        made["b_hh"] = made["b_ih"] if same else _gradient_of_bias(node, of_state, layer)
    return [made.get(name) for name in layer.inputs]


def _gradient_of_bias(node: _Node, rows: _Node, layer: Layer) -> _Node:
    if layer.has_biases:
        return inserted(node, aten.sum.dim_IntList, rows, [0])
    return inserted(node, aten.new_zeros.default, rows, [rows.meta["val"].shape[1]])

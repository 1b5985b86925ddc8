"""A recurrent layer as one operator for the loop over its time steps, with products beside it.

    states, h, c, kept = lstm(x, w_ih, w_hh, b_ih, b_hh, h0, c0)
->  inputs = x @ t(w_ih) + b_ih
    states, cells, gates = lstm_loop(inputs, w_hh, b_hh, h0, c0)
    ...
    grad_inputs, grad_h0, grad_c0 = lstm_loop_backward(grad_states, w_hh, cells, gates)
    grad_w_hh = t(grad_inputs) @ states before each step, and so on

The program has the same size for any number of steps. A backward whose forward is elsewhere
computes the loop again. Layers in bodies of loops are left to ``recurrent_steps``.
"""

from __future__ import annotations

import abc
import functools
import operator
from collections.abc import Callable

import torch

from abele.ops import gru_loop, lstm_loop, rnn_loop
from abele.passes._edit import editable, finished, inserted
from abele.passes.dead_code import dead_code
from abele.passes.of_lowerings._recurrent_layers import Layer, nodes_of, pairs, replace
from abele.program import Program

aten = torch.ops.aten

_Node = torch.fx.Node


def recurrent_loops(program: Program) -> Program:
    """Write the loops of all layers that are not in bodies of other loops."""
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
    loop = _LOOPS[layer.kind](layer)
    if layer.forward is not None:
        replace(layer.forward, loop.results())
    if layer.backward is not None:
        replace(layer.backward, _gradients(layer, layer.backward, loop))


class _Loop(abc.ABC):
    """The loop of a layer, which stands in front of its first node."""

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
        self._states, *self._others = self._loop(inputs, layer.inputs["w_hh"], bias)

    def _rows(self, x: _Node) -> _Node:
        """``[steps * batch, features]`` of a tensor, which may lie in another order."""
        if not x.meta["val"].is_contiguous():
            x = self._make(aten.clone.default, x, memory_format=torch.contiguous_format)
        return self._make(aten.view.default, x, [self.steps * self._batch, -1])

    @abc.abstractmethod
    def _loop(self, *given: _Node | None) -> list[_Node]:
        """The loop over inputs, with weight and bias of the state; its results."""

    @abc.abstractmethod
    def backward(self, before: _Node) -> tuple[_Node, _Node, dict[str, _Node]]:
        """Gradients of inputs, of the products of the state, and of the states before all steps."""

    def results(self) -> list[_Node]:
        """The state h after each step, and after the last."""
        first, last = (0, 0) if self._layer.reverse else (1, self.steps)
        states = self._make(aten.slice.Tensor, self._states, 0, first, first + self.steps)
        return [states, self._make(aten.select.int, self._states, 0, last)]

    def states_before(self, before: _Node) -> _Node:
        """The state h before each step, ``[steps * batch, units]``."""
        first = 1 if self._layer.reverse else 0
        states = inserted(before, aten.slice.Tensor, self._states, 0, first, first + self.steps)
        return inserted(before, aten.view.default, states, [self.steps * self._batch, -1])


class _Lstm(_Loop):
    def _loop(self, *given: _Node | None) -> list[_Node]:
        state = self._layer.inputs["h"], self._layer.inputs["c"]
        settings = self._layer.reverse, self._kept
        return _picked(self._make, self._make(lstm_loop.forward, *given, *state, *settings), 3)

    def results(self) -> list[_Node]:
        """With c after the last step."""
        last = self.steps if self._kept and not self._layer.reverse else 0
        return [*super().results(), self._make(aten.select.int, self._others[0], 0, last)]

    def backward(self, before: _Node) -> tuple[_Node, _Node, dict[str, _Node]]:
        layer, make = self._layer, functools.partial(inserted, before)
        given = *layer.gradients, layer.inputs["w_hh"], *self._others
        inputs, h, c = _picked(make, make(lstm_loop.backward, *given, layer.reverse), 3)
        return inputs, inputs, {"h": h, "c": c}


class _Gru(_Loop):
    def _loop(self, *given: _Node | None) -> list[_Node]:
        settings = self._layer.inputs["h"], self._layer.reverse, self._kept
        return _picked(self._make, self._make(gru_loop.forward, *given, *settings), 2)

    def backward(self, before: _Node) -> tuple[_Node, _Node, dict[str, _Node]]:
        layer, make = self._layer, functools.partial(inserted, before)
        given = *layer.gradients, layer.inputs["w_hh"], self._states, *self._others
        inputs, products, h = _picked(make, make(gru_loop.backward, *given, layer.reverse), 3)
        return inputs, products, {"h": h}


class _Rnn(_Loop):
    def _settings(self) -> tuple[bool, bool]:
        return self._layer.kind == "rnn_relu", self._layer.reverse

    def _loop(self, *given: _Node | None) -> list[_Node]:
        return [self._make(rnn_loop.forward, *given, self._layer.inputs["h"], *self._settings())]

    def backward(self, before: _Node) -> tuple[_Node, _Node, dict[str, _Node]]:
        layer, make = self._layer, functools.partial(inserted, before)
        given = *layer.gradients, layer.inputs["w_hh"], self._states
        inputs, h = _picked(make, make(rnn_loop.backward, *given, *self._settings()), 2)
        return inputs, inputs, {"h": h}


_LOOPS: dict[str, type[_Loop]] = {
    "lstm": _Lstm,
    "gru": _Gru,
    "rnn_tanh": _Rnn,
    "rnn_relu": _Rnn,
}


def _picked(make: Callable[..., _Node], made: _Node, count: int) -> list[_Node]:
    """The results of a node that has several."""
    return [make(operator.getitem, made, each) for each in range(count)]


def _gradients(layer: Layer, node: _Node, loop: _Loop) -> list[_Node | None]:
    """The gradients that are read, in the order of the layer's inputs."""
    make, wanted = functools.partial(inserted, node), layer.wanted()
    inputs, products, made = loop.backward(node)
    count = loop.rows.meta["val"].shape[0]
    rows = make(aten.view.default, inputs, [count, -1])
    of_state = rows if products is inputs else make(aten.view.default, products, [count, -1])
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

"""A recurrent layer as one operator for the loop over its time steps, with products beside it.

    states, h, c, kept = lstm(x, w_ih, w_hh, b_ih, b_hh, h0, c0)
->  inputs = x @ t(w_ih) + b_ih
    states, cells, gates = recurrent_loop("lstm", inputs, w_hh, b_hh, h0, c0)
    ...
    grad_inputs, grad_h0, grad_c0 = recurrent_loop_backward("lstm", grad_states, w_hh, cells, gates)
    grad_w_hh = t(grad_inputs) @ states before each step, and so on

The program has the same size for any number of steps. A backward whose forward is elsewhere
computes the loop again. Layers in bodies of loops are left to ``recurrent_steps``.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import torch

from abele.ops import recurrent_loop
from abele.ops.recurrent_cells import CELLS
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
    loop = _Loop(layer)
    if layer.forward is not None:
        replace(layer.forward, loop.results())
    if layer.backward is not None:
        replace(layer.backward, _gradients(layer, layer.backward, loop))


class _Loop:
    """The loop of a layer, inserted before its first node."""

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
        """Return a tensor as ``[steps * batch, features]``, copied unless it is contiguous."""
        if not x.meta["val"].is_contiguous():
            x = self._make(aten.clone.default, x, memory_format=torch.contiguous_format)
        return self._make(aten.view.default, x, [self.steps * self._batch, -1])

    def backward(self, before: _Node) -> dict[str, _Node]:
        """Return gradients of inputs, products of the state, and the states before all steps."""
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
        """Return h after each step, and h, and c of an LSTM, after the last."""
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
    """Return the results of a node by name."""
    return {name: make(operator.getitem, made, i) for i, name in enumerate(names)}


def _gradients(layer: Layer, node: _Node, loop: _Loop) -> list[_Node | None]:
    """The gradients that are read, in the order of the layer's inputs."""
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

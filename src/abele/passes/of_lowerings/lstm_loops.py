"""An LSTM layer as one operator for the loop over its time steps, with products beside it.

    states, h, c, kept = lstm(x, w_ih, w_hh, b_ih, b_hh, h0, c0)
->  inputs = x @ t(w_ih) + b_ih
    states, cells, gates = lstm_loop(inputs, w_hh, b_hh, h0, c0)
    ...
    grad_inputs, grad_h0, grad_c0 = lstm_loop_backward(grad_states, w_hh, cells, gates)
    grad_w_hh = t(grad_inputs) @ states before each step, and so on

The program has the same size for any number of steps. A backward whose forward is elsewhere
computes the loop again. Layers in bodies of loops are left to ``lstm_steps``.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch

from abele.ops import lstm_loop
from abele.passes._edit import editable, finished, inserted
from abele.passes.dead_code import dead_code
from abele.passes.of_lowerings._lstm_layers import (
    GRADIENTS,
    index,
    inputs_of,
    layers,
    pairs,
    replace,
    settings,
)
from abele.program import Program

aten = torch.ops.aten

_Node = torch.fx.Node


def lstm_loops(program: Program) -> Program:
    """Write the loops of all layers that are not in bodies of other loops."""
    if not layers(program.graph):
        return program
    graph = editable(program)
    nodes = layers(graph)
    for forward, backward in pairs(graph):
        _write(forward, backward)
    for node in reversed(nodes):
        graph.graph.erase_node(node)
    return dead_code(finished(program, graph))


def _write(forward: _Node | None, backward: _Node | None) -> None:
    if forward is None:
        assert backward is not None
        _write_backward(backward, _Loop(backward, forward, backward))
        return
    loop = _Loop(forward, forward, backward)
    replace(forward, dict(enumerate(loop.results())))
    if backward is not None:
        _write_backward(backward, loop)


class _Loop:
    """The loop of a layer.

    Args:
        before: what is in front of it stands there.
        forward: of the layer; None if it is elsewhere.
        backward: likewise.
    """

    def __init__(self, before: _Node, forward: _Node | None, backward: _Node | None):
        self._before, self._make = before, functools.partial(inserted, before)
        self.reverse, self.has_biases = settings(forward, backward)
        x, w_ih, self.weight, b_ih, b_hh, h, c = inputs_of(forward, backward)
        self._kept = backward is not None
        self.steps, self._batch, _ = x.meta["val"].shape
        self.rows = self._rows(x)
        product = self._make(aten.mm.default, self.rows, self._make(aten.t.default, w_ih))
        if self.has_biases:
            product = self._make(aten.add.Tensor, product, b_ih)
        inputs = self._make(aten.view.default, product, [self.steps, self._batch, -1])
        loop = self._make(
            *(lstm_loop.forward, inputs, self.weight, b_hh if self.has_biases else None),
            *(h, c, self.reverse, self._kept),
        )
        self._states, self.cells, self.gates = (
            self._make(operator.getitem, loop, each) for each in range(3)
        )

    def _rows(self, x: _Node) -> _Node:
        """``[steps * batch, features]`` of a tensor, which may lie in another order."""
        if not x.meta["val"].is_contiguous():
            x = self._make(aten.clone.default, x, memory_format=torch.contiguous_format)
        return self._make(aten.view.default, x, [self.steps * self._batch, -1])

    def results(self) -> list[_Node]:
        """The state h after each step, h and c after the last."""
        first, last = (0, 0) if self.reverse else (1, self.steps)
        states = self._make(aten.slice.Tensor, self._states, 0, first, first + self.steps)
        h = self._make(aten.select.int, self._states, 0, last)
        return [states, h, self._make(aten.select.int, self.cells, 0, last if self._kept else 0)]

    def states_before(self, before: _Node) -> _Node:
        """The state h before each step, ``[steps * batch, units]``."""
        first = 1 if self.reverse else 0
        states = inserted(before, aten.slice.Tensor, self._states, 0, first, first + self.steps)
        return inserted(before, aten.view.default, states, [self.steps * self._batch, -1])


def _write_backward(node: _Node, loop: _Loop) -> None:
    """Compute the gradients that are read, each of a layer's argument."""
    make = functools.partial(inserted, node)
    x, w_ih = inputs_of(None, node)[:2]
    given: Any = node.args[GRADIENTS]
    made = make(lstm_loop.backward, *given, loop.weight, loop.cells, loop.gates, loop.reverse)
    inputs, grad_h, grad_c = (make(operator.getitem, made, each) for each in range(3))
    rows = make(aten.view.default, inputs, [loop.rows.meta["val"].shape[0], -1])
    columns = make(aten.t.default, rows)
    results = {5: grad_h, 6: grad_c}
    wanted = {index(user) for user in node.users}
    if 0 in wanted:
        product = make(aten.mm.default, rows, w_ih)
        results[0] = make(aten.view.default, product, list(x.meta["val"].shape))
    if 1 in wanted:
        results[1] = make(aten.mm.default, columns, loop.rows)
    if 2 in wanted:
        results[2] = make(aten.mm.default, columns, loop.states_before(node))
    if wanted & {3, 4}:
        results[3] = results[4] = _gradient_of_bias(node, rows, loop)
    replace(node, results)


def _gradient_of_bias(node: _Node, rows: _Node, loop: _Loop) -> _Node:
    if loop.has_biases:
        return inserted(node, aten.sum.dim_IntList, rows, [0])
    value = rows.meta["val"]
    return inserted(node, aten.new_zeros.default, rows, [value.shape[1]])

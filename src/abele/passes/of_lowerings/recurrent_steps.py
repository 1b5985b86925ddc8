"""A recurrent layer as the operators of its time steps, for whoever has no loop over them.

    states, h, c, kept = lstm(x, w_ih, w_hh, b_ih, b_hh, h0, c0)
->  gates = add(matmul(x, t(w_ih)), b_ih)
    for each step: add(addmm(b_hh, h, t(w_hh)), gates[t]), and so on

Compiled, the steps of an LSTM are faster than the library's layer; interpreted, they are thousands
of small operators. Forward and backward of a layer are traced together, once for each shape, so
that backward reads what forward computed. Where only one of both is in the program, backward
computes forward again.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from abele import _torch
from abele._torch.copies import copied_node
from abele.ops import recurrent
from abele.passes._edit import editable, finished
from abele.passes.common_subexpressions import common_subexpressions
from abele.passes.dead_code import dead_code
from abele.passes.identities import identities
from abele.passes.of_lowerings._recurrent_layers import Layer, pairs, replace
from abele.program import (
    Program,
    Role,
    ancestors,
    returned_nodes,
    subgraphs,
)
from abele.trace.tensor_names import Lookup
from abele.trace.tracer import Named, Values, trace

_Node = torch.fx.Node
_Layout = tuple[tuple[int, ...], tuple[int, ...]]


def recurrent_steps(program: Program) -> Program:
    """Take every recurrent layer apart, also in bodies of loops."""
    return _in_steps(program, lambda layer: True)


def steps_but_of_lstms(program: Program) -> Program:
    """Take the other recurrent layers apart: GPUs have a library for LSTMs."""
    return _in_steps(program, lambda layer: layer.kind != "lstm")


def _in_steps(program: Program, wanted: Callable[[Layer], bool]) -> Program:
    graphs = [program.graph, *_bodies(program.graph)]
    if not any(wanted(Layer(*pair)) for graph in graphs for pair in pairs(graph)):
        return program
    graph = editable(program)
    _rewrite(graph, wanted)
    return dead_code(common_subexpressions(identities(finished(program, graph))))


def _bodies(graph: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    inner = [body for _, body in subgraphs(graph)]
    return inner + [each for body in inner for each in _bodies(body)]


def _rewrite(graph: torch.fx.GraphModule, wanted: Callable[[Layer], bool]) -> None:
    apart = [pair for pair in pairs(graph) if wanted(Layer(*pair))]
    for pair in apart:
        _Steps(Layer(*pair)).write()
    for forward, backward in apart:
        for node in filter(None, (backward, forward)):
            graph.graph.erase_node(node)
    for name, inner in list(subgraphs(graph)):
        # A copy: the program that was handed in keeps its own.
        rewritten = torch.fx.GraphModule(inner, copy.deepcopy(inner.graph))
        _rewrite(rewritten, wanted)
        rewritten.recompile()
        setattr(graph, name, rewritten)


class _Steps:
    """The operators for one layer."""

    def __init__(self, layer: Layer):
        self._layer = layer
        inputs = layer.inputs
        # Backward of an operator computes all of them.
        self._wanted = [each for each in inputs if each in layer.wanted()]
        which = tuple(i for i, each in enumerate(layer.gradients) if each is not None)
        given = [each for each in layer.gradients if each is not None]
        value: Any = inputs["x"].meta["val"]
        program = _traced(
            value.fake_mode,
            layer.kind,
            tuple((name, _layout(node)) for name, node in inputs.items()),
            tuple(map(_layout, given)),
            (layer.reverse, layer.has_biases, layer.trained),
            which,
            tuple(self._wanted),
        )
        self._returned = returned_nodes(program.graph)
        self._nodes = [node for node in program.graph.graph.nodes if node.op == "call_function"]
        self._copies = dict(zip(program.placeholders(), (*inputs.values(), *given), strict=True))

    def write(self) -> None:
        """Put the operators in front of the two nodes, and their results in the place of these."""
        layer, count = self._layer, len(self._returned) - len(self._wanted)
        results, gradients = self._returned[:count], self._returned[count:]
        first = ancestors(*results) | set(results)
        if layer.forward is not None:
            self._copy([node for node in self._nodes if node in first], layer.forward)
            replace(layer.forward, [self._copies[each] for each in results])
        if layer.backward is not None:
            self._copy([node for node in self._nodes if node not in self._copies], layer.backward)
            made = dict(zip(self._wanted, map(self._copies.__getitem__, gradients), strict=True))
            replace(layer.backward, [made.get(name) for name in layer.inputs])

    def _copy(self, nodes: Sequence[_Node], before: _Node) -> None:
        marks = {key: before.meta[key] for key in ("custom", "stack_trace") if key in before.meta}
        with before.graph.inserting_before(before):
            for node in nodes:
                kept = {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}
                self._copies[node] = copied_node(
                    before.graph, node, self._copies.__getitem__, {**kept, **marks}
                )


def _layout(node: _Node) -> _Layout:
    value = node.meta["val"]
    return tuple(value.shape), value.stride()


@functools.lru_cache(maxsize=16)
def _traced(
    mode: _torch.FakeTensorMode,
    kind: str,
    inputs: tuple[tuple[str, _Layout], ...],
    gradients: tuple[_Layout, ...],
    settings: tuple[bool, ...],
    given: tuple[int, ...],
    wanted: tuple[str, ...],
) -> Program:
    """A layer as a program of its own: states, last states, and gradients.

    Args:
        mode: of the values that nodes carry.
        kind: of the layer.
        inputs: names and layouts of what it computes from.
        gradients: layouts of those that backward is given.
        settings: whether time runs backwards, biases are added, and the weight of x is trained.
        given: of which results there are gradients.
        wanted: of which inputs gradients are returned.
    """
    names = [name for name, _ in inputs]

    def named(name: str, layout: _Layout, *, differentiable: bool = False) -> Named:
        value = torch.empty_strided(*layout)
        return Named(name, Role.INPUT, value, requires_grad=differentiable)

    def body(values: Values) -> tuple[list[torch.Tensor], None]:
        tensors = list(values.of(Role.INPUT).values())
        named = dict(zip(names, tensors, strict=False))
        outputs = _results(kind, named, *settings[:2])
        derivatives: Sequence[torch.Tensor] = ()
        if wanted:
            derivatives = torch.autograd.grad(
                [outputs[i] for i in given], [named[each] for each in wanted], tensors[len(names) :]
            )
        return [*outputs, *derivatives], None

    trained = {"w_ih": settings[2]}
    slots = [
        named(name, layout, differentiable=name in wanted or trained.get(name, False))
        for name, layout in inputs
    ]
    slots += [named(f"g{i}", layout) for i, layout in zip(given, gradients, strict=True)]
    with _torch.TRACING:
        program, _ = trace(kind, body, slots, mode, Lookup())
    return program


def _results(
    kind: str, inputs: Mapping[str, torch.Tensor], reverse: bool, has_biases: bool
) -> tuple[torch.Tensor, ...]:
    x = inputs["x"]
    state = tuple(inputs[name] for name in ("h", "c") if name in inputs)
    names = ("w_ih", "w_hh", "b_ih", "b_hh") if has_biases else ("w_ih", "w_hh")
    weights = [inputs[name] for name in names]
    if kind == "lstm":
        # Added by itself: its gradient is then a sum that ``summed_products`` shares with b_hh.
        of_inputs = x @ weights[0].t()
        of_inputs = of_inputs + inputs["b_ih"] if has_biases else of_inputs
    else:
        of_inputs = recurrent.products(x, weights)
    states, last, _ = recurrent.steps(kind, of_inputs, state, weights, reverse)
    return states, *last

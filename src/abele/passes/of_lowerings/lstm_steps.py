"""An LSTM layer as the operators of its time steps, for whoever compiles.

    states, h, c, kept = lstm(x, w_ih, w_hh, b_ih, b_hh, h0, c0)
->  gates = add(matmul(x, t(w_ih)), b_ih)
    for each step: add(addmm(b_hh, h, t(w_hh)), gates[t]), and so on

Compiled, the steps are faster than the library's layer; interpreted, they are thousands of small
operators. Forward and backward of a layer are traced together, once for each shape, so that
backward reads what forward computed. Where only one of both is in the program, backward computes
forward again.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from abele import _torch
from abele._torch.copies import copied_node
from abele.passes._edit import editable, finished
from abele.passes.common_subexpressions import common_subexpressions
from abele.passes.dead_code import dead_code
from abele.passes.identities import identities
from abele.passes.of_lowerings._lstm_layers import (
    ARGUMENTS,
    GRADIENTS,
    index,
    inputs_of,
    layers,
    pairs,
    replace,
    settings,
)
from abele.program import (
    Program,
    Role,
    ancestors,
    returned_nodes,
    subgraphs,
)
from abele.trace.tensor_names import Lookup
from abele.trace.tracer import Named, Values, trace

aten = torch.ops.aten

_Node = torch.fx.Node
_Shape = tuple[int, ...]

_RESULTS = 3  # states and the last h and c


def lstm_steps(program: Program) -> Program:
    """Take every LSTM layer apart, also in bodies of loops."""
    if not layers(program.graph) and not any(map(layers, _bodies(program.graph))):
        return program
    graph = editable(program)
    _rewrite(graph)
    return dead_code(common_subexpressions(identities(finished(program, graph))))


def _bodies(graph: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    inner = [body for _, body in subgraphs(graph)]
    return inner + [each for body in inner for each in _bodies(body)]


def _rewrite(graph: torch.fx.GraphModule) -> None:
    nodes = layers(graph)
    for forward, backward in pairs(graph):
        _Layer(forward, backward).write()
    for node in reversed(nodes):
        graph.graph.erase_node(node)
    for name, inner in list(subgraphs(graph)):
        # A copy: the program that was handed in keeps its own.
        rewritten = torch.fx.GraphModule(inner, copy.deepcopy(inner.graph))
        _rewrite(rewritten)
        rewritten.recompile()
        setattr(graph, name, rewritten)


class _Layer:
    """One layer: its two nodes, of which one may be elsewhere, and the operators for them."""

    def __init__(self, forward: _Node | None, backward: _Node | None):
        self._forward, self._backward = forward, backward
        inputs = inputs_of(forward, backward)
        gradients: list[Any] = [] if backward is None else list(backward.args[GRADIENTS])
        read: set[int] = set() if backward is None else {index(each) for each in backward.users}
        self._wanted = tuple(sorted(read))
        which = tuple(i for i, each in enumerate(gradients) if each is not None)
        reverse, has_biases = settings(forward, backward)
        value: Any = inputs[0].meta["val"]
        program = _traced(
            value.fake_mode,
            tuple(tuple(node.meta["val"].shape) for node in inputs),
            reverse,
            has_biases,
            which,
            self._wanted,
        )
        self._returned = returned_nodes(program.graph)
        self._nodes = [node for node in program.graph.graph.nodes if node.op == "call_function"]
        inputs += [gradients[i] for i in which]
        self._copies = dict(zip(program.placeholders(), inputs, strict=True))

    def write(self) -> None:
        """Put the operators in front of the two nodes, and their results in the place of these."""
        states = self._returned[:_RESULTS]
        first = ancestors(*states) | set(states)
        if self._forward is not None:
            self._copy([node for node in self._nodes if node in first], self._forward)
            self._replace(self._forward, dict(enumerate(states)))
        if self._backward is not None:
            self._copy([node for node in self._nodes if node not in self._copies], self._backward)
            gradients = self._returned[_RESULTS:]
            self._replace(self._backward, dict(zip(self._wanted, gradients, strict=True)))

    def _copy(self, nodes: Sequence[_Node], before: _Node) -> None:
        marks = {key: before.meta[key] for key in ("custom", "stack_trace") if key in before.meta}
        with before.graph.inserting_before(before):
            for node in nodes:
                kept = {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}
                self._copies[node] = copied_node(
                    before.graph, node, self._copies.__getitem__, {**kept, **marks}
                )

    def _replace(self, node: _Node, results: dict[int, _Node]) -> None:
        replace(node, {which: self._copies[result] for which, result in results.items()})


@functools.lru_cache(maxsize=16)
def _traced(
    mode: _torch.FakeTensorMode,
    shapes: tuple[_Shape, ...],
    reverse: bool,
    has_biases: bool,
    given: tuple[int, ...],
    wanted: tuple[int, ...],
) -> Program:
    """A layer as a program of its own: states, last h and c, and gradients.

    Args:
        mode: of the values that nodes carry.
        shapes: of the arguments.
        reverse: from the last step to the first.
        has_biases: biases are added.
        given: of which results there are gradients.
        wanted: of which arguments gradients are returned.
    """
    steps, batch, units = shapes[0][0], *shapes[5]
    results: list[_Shape] = [(steps, batch, units), (batch, units), (batch, units)]

    def named(name: str, shape: _Shape, *, differentiable: bool = False) -> Named:
        return Named(name, Role.INPUT, torch.empty(shape), requires_grad=differentiable)

    def body(values: Values) -> tuple[list[torch.Tensor], None]:
        tensors = list(values.of(Role.INPUT).values())
        inputs, gradients = tensors[:ARGUMENTS], tensors[ARGUMENTS:]
        outputs = _steps(*inputs, reverse=reverse, has_biases=has_biases)
        derivatives: Sequence[torch.Tensor] = ()
        if wanted:
            derivatives = torch.autograd.grad(
                [outputs[i] for i in given], [inputs[i] for i in wanted], gradients
            )
        return [*outputs, *derivatives], None

    slots = [named(f"a{i}", s, differentiable=i in wanted) for i, s in enumerate(shapes)]
    slots += [named(f"g{i}", results[i]) for i in given]
    with _torch.TRACING:
        program, _ = trace("lstm", body, slots, mode, Lookup())
    return program


def _steps(
    x: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    *,
    reverse: bool,
    has_biases: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute what ``ops.lstm`` does; the product of all inputs is one."""
    inputs = x @ w_ih.t()
    # Added by itself: its gradient is then a sum that ``summed_products`` shares with b_hh.
    steps = (inputs + b_ih if has_biases else inputs).unbind(0)
    states: list[torch.Tensor] = []
    for of_input in reversed(steps) if reverse else steps:
        gates = F.linear(h, w_hh, b_hh if has_biases else None) + of_input
        entry, forget, cell, output = gates.unsafe_chunk(4, 1)
        entry, forget = entry.sigmoid(), forget.sigmoid()
        cell, output = cell.tanh(), output.sigmoid()
        c = forget * c + entry * cell
        h = output * c.tanh()
        states.append(h)
    return torch.stack(states[::-1] if reverse else states), h, c

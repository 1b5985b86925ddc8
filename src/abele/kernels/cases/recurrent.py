"""Tables of recurrent layers."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Iterator

import torch

from abele.kernels.binding import Recurrent
from abele.kernels.cases.case import (
    TAILS,
    Case,
    Table,
    Tensor,
    call,
    double,
    numbers,
    threads_of,
    unwritten,
)
from abele.kernels.cases.products import packed

_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
# Gates that forward keeps for backward.
_KEPT = {"lstm": 4, "gru": 4, "rnn": 0}
_UNITS = TAILS[:-2]


class _Layer:
    """A recurrent layer with small numbers, and its steps in float64 as plain loops.

    Args:
        kind: ``lstm``, ``gru`` or ``rnn``.
        index: of the table's row.
        units: of the layer.
    """

    def __init__(self, kind: str, index: int, units: int):
        self.kind, gates = kind, {"lstm": 4, "gru": 3, "rnn": 1}[kind]
        self.steps, self.batch, self.units = 1 + index % 3, 1 + 5 * index % 9, units
        self.reverse, self.relu = index % 2, index // 2 % 2
        width = gates * units
        self.inputs = numbers(self.steps, self.batch, width)
        self.weight = numbers(width, units, seed=1) / math.sqrt(units)
        self.bias = numbers(width, seed=2) if index % 4 else None
        self.state = [numbers(self.batch, units, seed=3 + each) for each in range(2)]
        self.named = {"steps": self.steps, "batch": self.batch, "units": units}
        self.leaves = double(self.inputs, *self.state)
        self.states: list[Tensor] = []
        self.cells: list[Tensor] = []
        self.gates: list[Tensor] = []
        self.products: list[Tensor] = []
        self._run()

    def described(self, kept: int = 1) -> ctypes.Structure:
        """Return the layer as a kernel takes it."""
        return Recurrent(self.steps, self.batch, self.units, self.reverse, kept, int(self.relu))

    def _run(self) -> None:
        inputs, h, c = self.leaves
        weight, bias = self.weight.double(), 0.0 if self.bias is None else self.bias.double()
        self.states, self.cells = [h], [c]
        order = range(self.steps)
        for step in reversed(order) if self.reverse else order:
            products = h @ weight.T + bias
            self.products.append(products)
            h, c, gates = getattr(self, f"_{self.kind}")(inputs[step], products, h, c)
            self.states.append(h)
            self.cells.append(c)
            self.gates.append(gates)

    def _lstm(self, x: Tensor, products: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        entry, forget, cell, output = (x + products).chunk(4, 1)
        entry, forget, cell, output = (
            entry.sigmoid(),
            forget.sigmoid(),
            cell.tanh(),
            output.sigmoid(),
        )
        c = forget * c + entry * cell
        return output * c.tanh(), c, torch.cat([entry, forget, cell, output], 1)

    def _gru(self, x: Tensor, products: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        xs, p = x.chunk(3, 1), products.chunk(3, 1)
        reset, update = (xs[0] + p[0]).sigmoid(), (xs[1] + p[1]).sigmoid()
        candidate = (xs[2] + reset * p[2]).tanh()
        gates = torch.cat([reset, update, p[2], candidate], 1)
        return (h - candidate) * update + candidate, c, gates

    def _rnn(self, x: Tensor, products: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        summed = x + products
        return summed.relu() if self.relu else summed.tanh(), c, summed

    def in_memory(self, each: list[Tensor]) -> Tensor:
        """Return tensors of all steps in the order in which they lie in memory."""
        return torch.stack(each[::-1] if self.reverse else each).detach()

    def after(self) -> Tensor:
        """Return the exact states after each step, of which gradients can be asked."""
        return torch.stack(self.states[:0:-1] if self.reverse else self.states[1:])


def _forward(kind: str, library: ctypes.CDLL) -> Iterator[Case]:
    function = getattr(library, f"abele_{kind}")
    for index, units in enumerate(_UNITS):
        layer, kept = _Layer(kind, index, units), int(index % 4 != 1)
        steps, batch = layer.steps, layer.batch
        ready = packed(library, layer.weight.T)
        (states,), exact = unwritten((steps + 1, batch, units)), [layer.in_memory(layer.states)]
        results, given = [states], [layer.inputs, ready, layer.bias, layer.state[0]]
        if kind == "lstm":
            given.append(layer.state[1])
            results += unwritten((steps + 1, batch, units) if kept else (batch, units))
            exact.append(layer.in_memory(layer.cells) if kept else layer.cells[-1].detach())
        if kind != "rnn":
            results += unwritten((steps if kept else 1, batch, _KEPT[kind] * units))
            exact.append(layer.in_memory(layer.gates))
        threads = threads_of(index)
        call(function, layer.described(kept), *given, *results, threads)
        if kind != "rnn" and not kept:  # holds the gates of any step
            results, exact = results[:-1], exact[:-1]
        yield Case(layer.named, results, exact)


def _backward(kind: str, library: ctypes.CDLL) -> Iterator[Case]:
    function = getattr(library, f"abele_{kind}_backward")
    for index, units in enumerate(_UNITS):
        layer = _Layer(kind, index, units)
        steps, state = layer.steps, (layer.batch, units)
        grads = [numbers(steps, *state, seed=5), numbers(*state, seed=6), numbers(*state, seed=7)]
        loss = (layer.after() * grads[0]).sum() + (layer.states[-1] * grads[1]).sum()
        wanted, shapes = [layer.leaves[0]], [layer.inputs.shape]
        given, known = grads[:2], [layer.in_memory(layer.states)]
        if kind == "lstm":
            loss = loss + (layer.cells[-1] * grads[2]).sum()
            given, known = grads, [layer.in_memory(layer.cells)]
        if kind != "rnn":
            known.append(layer.in_memory(layer.gates))
        if kind == "gru":
            wanted, shapes = [*wanted, *layer.products], [*shapes, layer.inputs.shape]
        wanted.append(layer.leaves[1])
        ends = [state, state] if kind == "lstm" else [state]
        wanted += layer.leaves[2:] if kind == "lstm" else []
        exact = list(torch.autograd.grad(loss, wanted))
        if kind == "gru":
            exact[1:-1] = [layer.in_memory(exact[1:-1])]
        results, ready = unwritten(*shapes, *ends), packed(library, layer.weight)
        before = (*given, ready, *(each.float() for each in known))
        call(function, layer.described(), *before, *results, threads_of(index))
        yield Case(layer.named, results, exact)


TABLES: dict[str, dict[str, Table]] = {
    kind: {
        f"abele_{kind}": functools.partial(_forward, kind),
        f"abele_{kind}_backward": functools.partial(_backward, kind),
    }
    for kind in _GATES
}

"""Tables of recurrent layers."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from abele.kernels.binding import Recurrent
from abele.kernels.cases.case import (
    TAILS,
    Case,
    Table,
    Tensor,
    call,
    numbers,
    threads_of,
    unwritten,
)
from abele.kernels.cases.products import packed
from abele.ops import recurrent_loop
from abele.ops.recurrent_cells import CELLS


class _Layer(NamedTuple):
    """A recurrent layer with small numbers."""

    kind: str
    named: dict[str, int]
    inputs: Tensor
    weight: Tensor
    bias: Tensor | None
    state: list[Tensor | None]
    reverse: bool
    kept: bool
    threads: int

    def described(self) -> ctypes.Structure:
        """Return the layer as an argument of a kernel."""
        return Recurrent(CELLS[self.kind].index, *self.named.values(), self.reverse, self.kept)

    def exact(self) -> dict[str, Tensor]:
        """Return the results of all steps in float64, by name."""
        given = _wide(self.inputs, self.weight, self.bias, *self.state)
        made = recurrent_loop.forward(self.kind, *given, self.reverse, self.kept)
        return dict(zip(recurrent_loop.results(self.kind), made, strict=True))


def _wide(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if each is None else each.double() for each in tensors]


def _layers(*, backward: bool) -> Iterator[_Layer]:
    for index, units in enumerate(TAILS[:-2]):
        steps, batch = 1 + index % 3, 1 + 5 * index % 9
        for kind in ("lstm", "gru", "rnn_relu" if index // 2 % 2 else "rnn_tanh"):
            width = CELLS[kind].gates * units
            yield _Layer(
                kind,
                {"steps": steps, "batch": batch, "units": units},
                numbers(steps, batch, width),
                numbers(width, units, seed=1) / math.sqrt(units),
                numbers(width, seed=2) if index % 4 else None,
                [numbers(batch, units, seed=3), _of_lstm(kind, batch, units, seed=4)],
                bool(index % 2),
                backward or index % 4 != 1,
                threads_of(index),
            )


def _of_lstm(kind: str, *shape: int, seed: int) -> Tensor | None:
    return numbers(*shape, seed=seed) if kind == "lstm" else None


def _written(exact: dict[str, Tensor], *names: str) -> list[Tensor | None]:
    """Return memory for the results of these names; None for one that a kind does not have."""
    return [unwritten(exact[name].shape)[0] if name in exact else None for name in names]


def _case(layer: _Layer, results: list[Tensor | None], exact: dict[str, Tensor]) -> Case:
    return Case(layer.named, [each for each in results if each is not None], [*exact.values()])


def _forward(library: ctypes.CDLL) -> Iterator[Case]:
    for layer in _layers(backward=False):
        exact = layer.exact()
        results = _written(exact, "states", "cells", "gates")
        given = layer.inputs, packed(library, layer.weight.T), layer.bias, *layer.state
        call(library.abele_recurrent, layer.described(), *given, *results, layer.threads)
        if not layer.kept and "gates" in exact:  # the gates of any step
            exact.pop("gates")
            results[2] = None
        yield _case(layer, results, exact)


def _backward(library: ctypes.CDLL) -> Iterator[Case]:
    for layer in _layers(backward=True):
        forward, state = layer.exact(), layer.state[0]
        assert state is not None
        known: list[Any] = [forward.get(name) for name in ("states", "cells", "gates")]
        of_c = _of_lstm(layer.kind, *state.shape, seed=7)
        steps = layer.named["steps"]
        grads = numbers(steps, *state.shape, seed=5), numbers(*state.shape, seed=6), of_c
        given = *_wide(*grads, layer.weight), *known, layer.reverse
        made = recurrent_loop.backward(layer.kind, *given)
        exact = dict(zip(recurrent_loop.gradients(layer.kind), made, strict=True))
        results = _written(exact, "inputs", "products", "h", "c")
        read = (None if each is None else each.float() for each in known)
        before = *grads, packed(library, layer.weight), *read
        described = layer.described()
        call(library.abele_recurrent_backward, described, *before, *results, layer.threads)
        yield _case(layer, results, exact)


TABLES: dict[str, Table] = {
    "abele_recurrent": _forward,
    "abele_recurrent_backward": _backward,
}

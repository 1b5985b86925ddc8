"""The time loop of a recurrent layer as one operator, for targets with a kernel for it.

``ops.recurrent_cells`` has the equations. ``inputs`` is the product of the layer's inputs and
weights for all steps; it and the gradients of weights are GEMMs outside the loop.
``passes.of_lowerings.recurrent`` writes these operators in place of those of ``ops.lstm`` and
``ops.recurrent``. Importing this module registers them.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from abele.ops._register import implements, shapes_of
from abele.ops.recurrent_cells import CELLS, Tensors

_FORWARD = "abele::recurrent_loop"
_BACKWARD = "abele::recurrent_loop_backward"


def results(kind: str) -> list[str]:
    """Return the names of the results of ``forward`` for a kind of cell."""
    cell = CELLS[kind]
    absent = {"cells": cell.states == 1, "gates": not cell.kept}
    return [name for name in ("states", "cells", "gates") if not absent.get(name)]


def gradients(kind: str) -> list[str]:
    """Return the names of the results of ``backward`` for a kind of cell."""
    absent = {"products": CELLS[kind].one_gradient, "c": CELLS[kind].states == 1}
    return [name for name in ("inputs", "products", "h", "c") if not absent.get(name)]


@implements(
    _FORWARD,
    "(str kind, Tensor inputs, Tensor weight, Tensor? bias, Tensor h, Tensor? c, bool reverse,"
    " bool kept) -> Tensor[]",
)
def _forward(
    kind: str,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    h: torch.Tensor,
    c: torch.Tensor | None,
    reverse: bool,
    kept: bool,
) -> list[torch.Tensor]:
    """Compute all time steps of a recurrent layer from its input GEMMs.

    Args:
        kind: of ``CELLS``.
        inputs: ``[steps, batch, gates * units]`` float32, gates in torch's order, with one bias.
        weight: ``[gates * units, units]``, of the state.
        bias: ``[gates * units]``, the other one.
        h: ``[batch, units]``, before the first step.
        c: as ``h``, of an LSTM.
        reverse: from the last step to the first.
        kept: keep what backward needs.

    Returns:
        By ``results``: h before and after each step ``[steps + 1, batch, units]``, of which the
        last is the first in time with ``reverse``; c likewise; and the tensors that the cell keeps,
        ``[steps, batch, tensors * units]``. What is not kept has one step: c after all of them,
        and any gates.
    """
    cell = CELLS[kind]
    state: Tensors = (h,) if c is None else (h, c)
    states: list[Tensors] = [state]
    gates: list[torch.Tensor] = []
    for of_input in reversed(inputs.unbind(0)) if reverse else inputs.unbind(0):
        state, of_step = cell.forward(of_input, F.linear(state[0], weight, bias), state)
        states.append(state)
        gates += [torch.cat(of_step, 1)] if of_step else []
    lists = [list(each) for each in zip(*states, strict=True)] + ([gates] if gates else [])
    if not kept:
        lists[1:] = [each[-1:] for each in lists[1:]]
    return [torch.stack(each[::-1] if reverse else each) for each in lists]


@implements(
    _BACKWARD,
    "(str kind, Tensor? grad_states, Tensor? grad_h, Tensor? grad_c, Tensor weight,"
    " Tensor? states, Tensor? cells, Tensor? gates, bool reverse) -> Tensor[]",
)
def _backward(
    kind: str,
    grad_states: torch.Tensor | None,
    grad_h: torch.Tensor | None,
    grad_c: torch.Tensor | None,
    weight: torch.Tensor,
    states: torch.Tensor | None,
    cells: torch.Tensor | None,
    gates: torch.Tensor | None,
    reverse: bool,
) -> list[torch.Tensor]:
    """Compute the time loop's gradients of ``inputs``, hidden products, h and c.

    Args:
        kind: of ``CELLS``.
        grad_states: of the states after each step, ``[steps, batch, units]``; None: zeros.
        grad_h: of h after the last step; None: zeros.
        grad_c: of c after the last step; None: zeros.
        weight: the argument of forward.
        states: h as forward returned it; None if the cell does not read it.
        cells: c as forward returned it; None if the cell has none.
        gates: as forward returned them; None if the cell keeps none.
        reverse: the argument of forward.
    """
    cell, known = CELLS[kind], states if cells is None else cells
    assert known is not None  # c is that of LSTMs, all others read h
    count, zeros = len(known) - 1, torch.zeros_like(known[0])
    grads = tuple(zeros if each is None else each for each in (grad_h, grad_c)[: cell.states])
    made = list[Tensors]()
    for step in range(count) if reverse else reversed(range(count)):
        if grad_states is not None:
            grads = (grads[0] + grad_states[step], *grads[1:])
        around = [
            tuple(zeros if each is None else each[at] for each in (states, cells))
            for at in (step, step + 1)
        ]
        before, after = around[::-1] if reverse else around
        kept = () if gates is None else gates[step].chunk(cell.kept, 1)
        of_inputs, of_products, terms, of_c = cell.backward(grads, before, after, kept)
        made.append((of_inputs,) if cell.one_gradient else (of_inputs, of_products))
        grads = (functools.reduce(torch.add, (*terms, of_products @ weight)), *of_c)
    order = slice(None, None, 1 if reverse else -1)
    of_steps = [torch.stack(each[order]) for each in zip(*made, strict=True)]
    return [*of_steps, *(each.clone() for each in grads)]


@shapes_of(_FORWARD)
def _forward_shape(kind: str, inputs: torch.Tensor, *others: Any) -> list[torch.Tensor]:
    *_, h, _, _, kept = others
    steps, (batch, units) = inputs.shape[0], h.shape
    rows = {"states": steps + 1, "cells": steps + 1 if kept else 1, "gates": steps if kept else 1}
    widths = {"gates": CELLS[kind].kept * units}
    return [h.new_empty((rows[n], batch, widths.get(n, units))) for n in results(kind)]


@shapes_of(_BACKWARD)
def _backward_shape(kind: str, *args: Any) -> list[torch.Tensor]:
    weight, states, cells = args[3:6]
    steps, batch, units = (states if cells is None else cells).shape
    rows = steps - 1, batch, weight.shape[0]
    of_steps = {"inputs": rows, "products": rows}
    return [weight.new_empty(of_steps.get(n, (batch, units))) for n in gradients(kind)]


forward = torch.ops.abele.recurrent_loop.default
backward = torch.ops.abele.recurrent_loop_backward.default

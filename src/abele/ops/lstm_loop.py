"""The time steps of one layer of an LSTM as one operator, for whoever has a loop over them.

    gates = inputs[t] + h @ weight' + bias
    c = sigmoid(forget) * c + sigmoid(input) * tanh(cell);  h = sigmoid(output) * tanh(c)

``inputs`` is the product of the layer's inputs and weights for all steps; it and the gradients of
weights are products beside the loop. ``passes.of_lowerings.recurrent_loops`` writes these operators
in place of those of ``ops.lstm``. Importing this module registers them.
"""

from __future__ import annotations

from typing import Any

import torch

from abele.ops._register import shapes_of

_FORWARD = "abele::lstm_loop"
_BACKWARD = "abele::lstm_loop_backward"

torch.library.define(
    _FORWARD,
    "(Tensor inputs, Tensor weight, Tensor? bias, Tensor h, Tensor c, bool reverse, bool kept)"
    " -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
torch.library.define(
    _BACKWARD,
    "(Tensor? grad_states, Tensor? grad_h, Tensor? grad_c, Tensor weight, Tensor cells,"
    " Tensor gates, bool reverse) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


@torch.library.impl(_FORWARD, "CompositeExplicitAutograd")
def _forward(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    h: torch.Tensor,
    c: torch.Tensor,
    reverse: bool,
    kept: bool,
) -> tuple[torch.Tensor, ...]:
    """Compute all time steps.

    Args:
        inputs: ``[steps, batch, 4 * units]`` float32, gates in torch's order, with one bias.
        weight: ``[4 * units, units]``, of the state.
        bias: ``[4 * units]``, the other one.
        h: ``[batch, units]``, before the first step.
        c: as ``h``.
        reverse: from the last step to the first.
        kept: keep what backward needs.

    Returns:
        h before and after each step ``[steps + 1, batch, units]``, of which the last is the first
        in time with ``reverse``; c likewise; and the gates after their activations
        ``[steps, batch, 4 * units]``. Of what is not kept there is one step: c after all of them,
        and any gates.
    """
    states, cells, gates = [h], [c], list[torch.Tensor]()
    for of_input in reversed(inputs.unbind(0)) if reverse else inputs.unbind(0):
        entry, forget, cell, output = (h @ weight.t() + of_input).chunk(4, 1)
        if bias is not None:
            of_gates = bias.chunk(4)
            entry, forget = entry + of_gates[0], forget + of_gates[1]
            cell, output = cell + of_gates[2], output + of_gates[3]
        entry, forget, output = entry.sigmoid(), forget.sigmoid(), output.sigmoid()
        cell = cell.tanh()
        c = forget * c + entry * cell
        h = output * c.tanh()
        states.append(h)
        cells.append(c)
        gates.append(torch.cat([entry, forget, cell, output], 1))
    if not kept:
        cells, gates = [c], gates[-1:]
    return tuple(torch.stack(each[::-1] if reverse else each) for each in (states, cells, gates))


@torch.library.impl(_BACKWARD, "CompositeExplicitAutograd")
def _backward(
    grad_states: torch.Tensor | None,
    grad_h: torch.Tensor | None,
    grad_c: torch.Tensor | None,
    weight: torch.Tensor,
    cells: torch.Tensor,
    gates: torch.Tensor,
    reverse: bool,
) -> tuple[torch.Tensor, ...]:
    """Compute the gradients of ``inputs``, h and c.

    Args:
        grad_states: of the states after each step, ``[steps, batch, units]``; None: zeros.
        grad_h: of h after the last step; None: zeros.
        grad_c: of c after the last step; None: zeros.
        weight: that forward was given.
        cells: that it kept.
        gates: likewise.
        reverse: that it was given.
    """
    steps = gates.shape[0]
    zeros = torch.zeros_like(cells[0])
    h, c = zeros if grad_h is None else grad_h, zeros if grad_c is None else grad_c
    gradients: list[torch.Tensor] = []
    for step in range(steps) if reverse else reversed(range(steps)):
        entry, forget, cell, output = gates[step].chunk(4, 1)
        before, after = (step + 1, step) if reverse else (step, step + 1)
        bent = cells[after].tanh()
        h = h if grad_states is None else h + grad_states[step]
        c = c + h * output * (1 - bent * bent)
        of_gates = [
            c * cell * ((1 - entry) * entry),
            c * cells[before] * ((1 - forget) * forget),
            c * entry * (1 - cell * cell),
            h * bent * ((1 - output) * output),
        ]
        gradients.append(torch.cat(of_gates, 1))
        h, c = gradients[-1] @ weight, c * forget
    return torch.stack(gradients if reverse else gradients[::-1]), h.clone(), c.clone()


@shapes_of(_FORWARD)
def _forward_shape(inputs: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...]:
    *_, h, c, _, kept = others
    steps = inputs.shape[0]
    return (
        h.new_empty((steps + 1, *h.shape)),
        c.new_empty((steps + 1 if kept else 1, *c.shape)),
        inputs.new_empty((steps if kept else 1, *inputs.shape[1:])),
    )


@shapes_of(_BACKWARD)
def _backward_shape(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
    cells, gates = args[4:6]
    state = cells.shape[1:]
    return gates.new_empty(gates.shape), cells.new_empty(state), cells.new_empty(state)


forward = torch.ops.abele.lstm_loop.default
backward = torch.ops.abele.lstm_loop_backward.default

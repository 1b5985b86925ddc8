"""The time steps of one layer of a GRU as one operator, for whoever has a loop over them.

    products = h @ weight' + bias
    reset, update = sigmoid(inputs[t] + products)
    candidate = tanh(inputs[t] + reset * products);  h = (h - candidate) * update + candidate

``inputs`` is the product of the layer's inputs and weights for all steps; it and the gradients of
weights are products beside the loop. ``passes.of_lowerings.recurrent_loops`` writes these operators
in place of those of ``ops.recurrent``. Importing this module registers them.
"""

from __future__ import annotations

from typing import Any

import torch

from abele.ops._register import shapes_of

_FORWARD = "abele::gru_loop"
_BACKWARD = "abele::gru_loop_backward"

torch.library.define(
    _FORWARD,
    "(Tensor inputs, Tensor weight, Tensor? bias, Tensor h, bool reverse, bool kept)"
    " -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
torch.library.define(
    _BACKWARD,
    "(Tensor? grad_states, Tensor? grad_h, Tensor weight, Tensor states, Tensor gates,"
    " bool reverse) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


@torch.library.impl(_FORWARD, "CompositeExplicitAutograd")
def _forward(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    h: torch.Tensor,
    reverse: bool,
    kept: bool,
) -> tuple[torch.Tensor, ...]:
    """Compute all time steps.

    Args:
        inputs: ``[steps, batch, 3 * units]`` float32, gates in torch's order, with one bias.
        weight: ``[3 * units, units]``, of the state.
        bias: ``[3 * units]``, the other one.
        h: ``[batch, units]``, before the first step.
        reverse: from the last step to the first.
        kept: keep what backward needs.

    Returns:
        h before and after each step ``[steps + 1, batch, units]``, of which the last is the first
        in time with ``reverse``; and ``[steps, batch, 4 * units]`` of reset, update, the
        candidate's product with the state, and candidate. Of these there is one step, with any
        values, if they are not kept.
    """
    states, gates = [h], list[torch.Tensor]()
    for of_input in reversed(inputs.unbind(0)) if reverse else inputs.unbind(0):
        products = h @ weight.t()
        products = products if bias is None else products + bias
        entries = zip(of_input.chunk(3, 1), products.chunk(3, 1), strict=True)
        reset, update = ((a + b).sigmoid() for a, b in (next(entries), next(entries)))
        from_inputs, from_state = next(entries)
        candidate = (from_state * reset + from_inputs).tanh()
        h = (h - candidate) * update + candidate
        states.append(h)
        gates.append(torch.cat([reset, update, from_state, candidate], 1))
    if not kept:
        gates = gates[-1:]
    return tuple(torch.stack(each[::-1] if reverse else each) for each in (states, gates))


@torch.library.impl(_BACKWARD, "CompositeExplicitAutograd")
def _backward(
    grad_states: torch.Tensor | None,
    grad_h: torch.Tensor | None,
    weight: torch.Tensor,
    states: torch.Tensor,
    gates: torch.Tensor,
    reverse: bool,
) -> tuple[torch.Tensor, ...]:
    """Compute the gradients of ``inputs``, of ``products`` and of h.

    Args:
        grad_states: of the states after each step, ``[steps, batch, units]``; None: zeros.
        grad_h: of h after the last step; None: zeros.
        weight: that forward was given.
        states: that it returned.
        gates: that it kept.
        reverse: that it was given.
    """
    steps = gates.shape[0]
    h = torch.zeros_like(states[0]) if grad_h is None else grad_h
    of_inputs, of_products = list[torch.Tensor](), list[torch.Tensor]()
    for step in range(steps) if reverse else reversed(range(steps)):
        reset, update, from_state, candidate = gates[step].chunk(4, 1)
        before = states[step + 1 if reverse else step]
        h = h if grad_states is None else h + grad_states[step]
        passed = h * update
        of_candidate = (h - passed) * (1 - candidate * candidate)
        of_reset = of_candidate * from_state * ((1 - reset) * reset)
        of_update = h * (before - candidate) * ((1 - update) * update)
        of_inputs.append(torch.cat([of_reset, of_update, of_candidate], 1))
        of_products.append(torch.cat([of_reset, of_update, of_candidate * reset], 1))
        h = passed + of_products[-1] @ weight
    both = (torch.stack(each if reverse else each[::-1]) for each in (of_inputs, of_products))
    return *both, h.clone()


@shapes_of(_FORWARD)
def _forward_shape(inputs: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...]:
    *_, h, _, kept = others
    steps, (batch, units) = inputs.shape[0], h.shape
    return (
        h.new_empty((steps + 1, batch, units)),
        h.new_empty((steps if kept else 1, batch, 4 * units)),
    )


@shapes_of(_BACKWARD)
def _backward_shape(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
    states, gates = args[3:5]
    (steps, batch, _), units = gates.shape, states.shape[-1]
    gradients = (gates.new_empty((steps, batch, 3 * units)) for _ in range(2))
    return *gradients, states.new_empty((batch, units))


forward = torch.ops.abele.gru_loop.default
backward = torch.ops.abele.gru_loop_backward.default

"""The time steps of one recurrent layer without gates as one operator.

    h = tanh(inputs[t] + h @ weight' + bias), or relu of it

``inputs`` is the product of the layer's inputs and weights for all steps; it and the gradients of
weights are products beside the loop. ``passes.of_lowerings.recurrent_loops`` writes these operators
in place of those of ``ops.recurrent``. Importing this module registers them.
"""

from __future__ import annotations

from typing import Any

import torch

from abele.ops._register import shapes_of

_FORWARD = "abele::rnn_loop"
_BACKWARD = "abele::rnn_loop_backward"

torch.library.define(
    _FORWARD,
    "(Tensor inputs, Tensor weight, Tensor? bias, Tensor h, bool relu, bool reverse) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
torch.library.define(
    _BACKWARD,
    "(Tensor? grad_states, Tensor? grad_h, Tensor weight, Tensor states, bool relu, bool reverse)"
    " -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


@torch.library.impl(_FORWARD, "CompositeExplicitAutograd")
def _forward(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    h: torch.Tensor,
    relu: bool,
    reverse: bool,
) -> torch.Tensor:
    """Return h before and after each step ``[steps + 1, batch, units]``.

    Args:
        inputs: ``[steps, batch, units]`` float32, with one bias.
        weight: ``[units, units]``, of the state.
        bias: ``[units]``, the other one.
        h: ``[batch, units]``, before the first step.
        relu: the activation, which is tanh otherwise.
        reverse: from the last step to the first; the first state in time is then the last here.
    """
    states = [h]
    for of_input in reversed(inputs.unbind(0)) if reverse else inputs.unbind(0):
        products = h @ weight.t()
        total = (products if bias is None else products + bias) + of_input
        h = total.relu() if relu else total.tanh()
        states.append(h)
    return torch.stack(states[::-1] if reverse else states)


@torch.library.impl(_BACKWARD, "CompositeExplicitAutograd")
def _backward(
    grad_states: torch.Tensor | None,
    grad_h: torch.Tensor | None,
    weight: torch.Tensor,
    states: torch.Tensor,
    relu: bool,
    reverse: bool,
) -> tuple[torch.Tensor, ...]:
    """Compute the gradients of ``inputs`` and h.

    Args:
        grad_states: of the states after each step, ``[steps, batch, units]``; None: zeros.
        grad_h: of h after the last step; None: zeros.
        weight: that forward was given.
        states: that it returned.
        relu: that it was given.
        reverse: likewise.
    """
    steps = states.shape[0] - 1
    h = torch.zeros_like(states[0]) if grad_h is None else grad_h
    gradients: list[torch.Tensor] = []
    for step in range(steps) if reverse else reversed(range(steps)):
        state = states[step if reverse else step + 1]
        h = h if grad_states is None else h + grad_states[step]
        gradients.append(h.where(~(state <= 0), 0.0) if relu else h * (1 - state * state))
        h = gradients[-1] @ weight
    return torch.stack(gradients if reverse else gradients[::-1]), h.clone()


@shapes_of(_FORWARD)
def _forward_shape(inputs: torch.Tensor, *others: Any) -> torch.Tensor:
    *_, h, _, _ = others
    return h.new_empty((inputs.shape[0] + 1, *h.shape))


@shapes_of(_BACKWARD)
def _backward_shape(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
    states = args[3]
    steps, *state = states.shape
    return states.new_empty((steps - 1, *state)), states.new_empty(state)


forward = torch.ops.abele.rnn_loop.default
backward = torch.ops.abele.rnn_loop_backward.default

"""A GRU or plain RNN layer in one direction as one operator, with torch's results.

On processors, torch computes such a layer by the operators of its time steps. This is one operator
with the same bits. Emitted code has a loop instead
(``passes.of_lowerings.recurrent``). Importing this module registers the operators.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from abele.ops._register import implements, register_gradient, shapes_of
from abele.ops.recurrent_cells import CELLS, Cell, Tensors

_FORWARD = "abele::recurrent"
_BACKWARD = "abele::recurrent_backward"


class StepsNeeded(Exception):
    """Raised where a recurrent layer cannot be captured as one operator."""


@implements(
    _FORWARD,
    "(str kind, Tensor x, Tensor h, Tensor[] weights, bool reverse, bool trained,"
    " bool differentiable) -> (Tensor, Tensor, Tensor)",
)
def _forward(
    kind: str,
    x: torch.Tensor,
    h: torch.Tensor,
    weights: Sequence[torch.Tensor],
    reverse: bool,
    trained: bool,
    differentiable: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute all time steps of a recurrent layer with torch's operators, in torch's order.

    Args:
        kind: ``gru``, ``rnn_tanh`` or ``rnn_relu``.
        x: ``[steps, batch, features]``.
        h: ``[batch, units]``, before the first step.
        weights: ``[gates * units, features]`` and ``[gates * units, units]``, with gates in torch's
            order; and both biases ``[gates * units]``, or none.
        reverse: from the last step to the first.
        trained: the weight of x has a gradient; torch's product has other bits then.
        differentiable: keep what backward needs.

    Returns:
        h of all steps, h after the last, and what is kept: of a GRU reset, update, the
        candidate's product with the state, and candidate ``[4, steps, batch, units]``.
    """
    cell, (w_ih, w_hh, *biases) = CELLS[kind], weights
    of_x, of_h = biases or (None, None)
    with torch.set_grad_enabled(trained):
        inputs = F.linear(x, w_ih.detach().requires_grad_(trained), of_x).detach()
    states, kept, last = list[torch.Tensor](), list[Tensors](), h
    with torch.no_grad():
        for of_input in reversed(inputs.unbind(0)) if reverse else inputs.unbind(0):
            (last,), of_step = cell.forward(of_input, F.linear(last, w_hh, of_h), (last,))
            states.append(last)
            kept.append(of_step if differentiable else ())
        order = slice(None, None, -1 if reverse else 1)
        made = torch.stack(states[order])
        gates = [each for of_gate in zip(*kept[order], strict=True) for each in of_gate]
        of_gates = torch.stack(gates) if gates else made.new_empty(0)
    return made, last.clone(), of_gates.view(len(kept[0]), *made.shape)


@implements(
    _BACKWARD,
    "(str kind, Tensor x, Tensor h, Tensor[] weights, bool reverse, bool trained, Tensor states,"
    " Tensor kept, Tensor? grad_states, Tensor? grad_h) -> Tensor[]",
)
def _backward(
    kind: str,
    x: torch.Tensor,
    h: torch.Tensor,
    weights: Sequence[torch.Tensor],
    reverse: bool,
    trained: bool,
    states: torch.Tensor,
    kept: torch.Tensor,
    grad_states: torch.Tensor | None,
    grad_h: torch.Tensor | None,
) -> list[torch.Tensor]:
    """Compute a recurrent layer's gradients of x, h and the weights, in torch's order.

    Arguments up to ``trained`` are as for forward; without ``trained`` the gradient of the weight
    of x is zeros. ``states`` and ``kept`` are results of forward. ``grad_states`` and ``grad_h``
    (of h after the last step) may be None, for zeros.
    """
    with torch.no_grad():
        gradients = grad_states, grad_h
        of_inputs, of_h, of_weights = _steps_backward(
            CELLS[kind], h, weights, reverse, states, kept, gradients
        )
    with torch.enable_grad():
        leaves = [each.detach().requires_grad_() for each in (x, *weights)]
        leaves[1].requires_grad_(trained)
        made = F.linear(leaves[0], leaves[1], leaves[3] if len(leaves) > 3 else None)
    wanted = [each for each in (*leaves[:2], *leaves[3:4]) if each.requires_grad]
    of_x, *made = torch.autograd.grad(made, wanted, of_inputs)
    made = made if trained else [torch.zeros_like(weights[0]), *made]
    ordered = zip(made, of_weights, strict=True)
    return [of_x, of_h, *(each for pair in ordered for each in pair)]


def _steps_backward(
    cell: Cell,
    h: torch.Tensor,
    weights: Sequence[torch.Tensor],
    reverse: bool,
    states: torch.Tensor,
    kept: torch.Tensor,
    gradients: tuple[torch.Tensor | None, torch.Tensor | None],
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Return gradients of the input GEMMs, of h, and of recurrent weight and bias."""
    (grad_states, grad_h), count = gradients, len(states)
    of_inputs, of_weights = [states] * count, list[torch.Tensor]()
    terms = [] if grad_h is None else [grad_h]
    order = list(range(count) if reverse else reversed(range(count)))
    for step, earlier in zip(order, [*order[1:], None], strict=True):
        terms = terms if grad_states is None else [grad_states[step], *terms]
        before = h if earlier is None else states[earlier]
        of_h = functools.reduce(torch.add, terms)
        of_inputs[step], of_state, passed, _ = cell.backward(
            (of_h,), (before,), (states[step],), kept[:, step].unbind(0)
        )
        terms = [*passed, of_state @ weights[1]]
        made = [of_state.t() @ before]
        if len(weights) > 2:
            made.append(of_state.sum(0))
        for total, each in zip(of_weights, made, strict=False):
            total.add_(each)
        of_weights = of_weights or made
    return torch.stack(of_inputs), functools.reduce(torch.add, terms), of_weights


@shapes_of(_FORWARD)
def _forward_shape(
    kind: str, x: torch.Tensor, h: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, ...]:
    *_, differentiable = others
    states = x.shape[0], *h.shape
    kept = CELLS[kind].kept if differentiable else 0, *states
    return x.new_empty(states), h.new_empty(h.shape), x.new_empty(kept)


@shapes_of(_BACKWARD)
def _backward_shape(
    kind: str, x: torch.Tensor, h: torch.Tensor, weights: Sequence[torch.Tensor], *others: Any
) -> list[torch.Tensor]:
    del kind, others
    return [each.new_empty(each.shape) for each in (x, h, *weights)]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.kind, x, h, weights, *ctx.settings, _ = inputs
    states, _, kept = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(kept)
    ctx.save_for_backward(x, h, *weights, states, kept)


def _gradient(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
    if torch.is_grad_enabled():  # the gradient of a gradient, which only the steps have
        raise StepsNeeded
    x, h, *weights, states, kept = ctx.saved_tensors
    made = backward(ctx.kind, x, h, weights, *ctx.settings, states, kept, *grads[:2])
    return None, made[0], made[1], list(made[2:]), None, None, None


register_gradient(_FORWARD, _gradient, _setup)

forward = torch.ops.abele.recurrent.default
backward = torch.ops.abele.recurrent_backward.default

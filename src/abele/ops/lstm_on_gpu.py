"""One layer of an LSTM in one direction by cuDNN, which plain PyTorch calls for it on GPUs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from abele import _torch

aten = torch.ops.aten

_MODE, _LAYERS = 2, 1  # how cuDNN's operator says that it is an LSTM
_ALIGNED = 256  # bytes; what cuDNN keeps for backward begins at a multiple


def forward(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    h: torch.Tensor,
    c: torch.Tensor,
    reverse: bool,
    differentiable: bool,
) -> tuple[torch.Tensor, ...]:
    """Compute all time steps; see ``lstm``.

    Args:
        x: ``[steps, batch, features]``.
        weights: of input and state, and both biases.
        h: ``[batch, units]``.
        c: as ``h``.
        reverse: from the last step to the first.
        differentiable: keep what backward needs.

    Returns:
        h of all steps, h and c after the last, and bytes for backward.
    """
    given = x.flip(0) if reverse else x
    how = _how(h, train=differentiable)
    with warnings.catch_warnings():  # that weights lie apart, as those of a session do
        warnings.simplefilter("ignore")
        states, last_h, last_c, reserved, packed = _torch.cudnn_rnn(
            given, list(weights), len(weights), None, h[None], c[None], *how
        )
    states = states.flip(0) if reverse else states
    kept = _joined(packed, reserved) if differentiable else x.new_empty(0, dtype=torch.uint8)
    return states, last_h[0], last_c[0], kept


def backward(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    state: tuple[torch.Tensor, torch.Tensor],
    states: torch.Tensor,
    gradients: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
    kept: torch.Tensor,
    reverse: bool,
) -> tuple[torch.Tensor, ...]:
    """Compute the gradients of x, of the weights in their order, and of h and c before the steps.

    Args:
        x: as for ``forward``.
        weights: likewise.
        state: h and c before the first step.
        states: what ``forward`` returned first.
        gradients: of ``forward``'s first three results; None for zero.
        kept: what it returned last.
        reverse: as for ``forward``.
    """
    h, c = state
    of_states, of_h, of_c = gradients
    if reverse:
        x, states = x.flip(0), states.flip(0)
        of_states = None if of_states is None else of_states.flip(0)
    packed, reserved = _apart(kept, sum(each.numel() for each in weights))
    of_x, before_h, before_c, of_weights = aten._cudnn_rnn_backward.default(
        *(x, list(weights), len(weights), packed, h[None], c[None], states, of_states),
        *(_row(of_h), _row(of_c), *_how(h, train=True), reserved, [True] * 4),
    )
    of_x = of_x.flip(0) if reverse else of_x
    return of_x, *of_weights, before_h[0], before_c[0]


def _row(gradient: torch.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None else gradient[None]


def _how(h: torch.Tensor, *, train: bool) -> tuple[Any, ...]:
    """What says which layer it is: sizes, no dropout, one direction, no packed sequences."""
    return _MODE, h.shape[-1], 0, _LAYERS, False, 0.0, train, False, [], None


def _joined(packed: torch.Tensor, reserved: torch.Tensor) -> torch.Tensor:
    """Both as one tensor of bytes."""
    first = packed.view(-1).view(torch.uint8)
    gap = first.new_empty(-first.numel() % _ALIGNED)
    return torch.cat([first, gap, reserved.view(-1)])


def _apart(kept: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights as cuDNN has packed them, ``count`` float32 numbers, and what it has reserved."""
    size = count * torch.float32.itemsize
    return kept[:size].view(torch.float32), kept[size + -size % _ALIGNED :]

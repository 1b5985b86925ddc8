"""An LSTM layer in one direction as one operator, by oneDNN or cuDNN like plain PyTorch.

    gates = x[t] @ w_ih' + b_ih + h @ w_hh' + b_hh
    c = sigmoid(forget) * c + sigmoid(input) * tanh(cell);  h = sigmoid(output) * tanh(c)

Programs have these operators where plain PyTorch calls these libraries, so interpreted programs
have its bits and its speed. Emitted code has a loop instead
(``passes.of_lowerings.recurrent``). Importing this module registers the operators.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from abele import _torch
from abele.ops._register import implements, shapes_of

_FORWARD = "abele::lstm"
_BACKWARD = "abele::lstm_backward"
_MODE = 2  # the number of LSTMs in both libraries' operators
_PROBES = 8, 16  # time steps


@implements(
    _FORWARD,
    "(Tensor x, Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh, Tensor h, Tensor c,"
    " bool reverse, bool has_biases, bool differentiable) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _forward(
    x: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    reverse: bool,
    has_biases: bool,
    differentiable: bool,
) -> tuple[torch.Tensor, ...]:
    """Compute all time steps of an LSTM layer.

    Args:
        x: ``[steps, batch, features]`` float32.
        w_ih: ``[4 * units, features]``; gates in torch's order.
        w_hh: ``[4 * units, units]``.
        b_ih: ``[4 * units]``; zeros without biases.
        b_hh: as ``b_ih``.
        h: ``[batch, units]``, before the first step.
        c: as ``h``.
        reverse: from the last step to the first.
        has_biases: the layer has them.
        differentiable: keep what backward needs.

    Returns:
        h of all steps ``[steps, batch, units]``, h and c after the last, and bytes for backward.
    """
    if x.is_cuda:
        weights = _weights_of_gpu(w_ih, w_hh, b_ih, b_hh, has_biases)
        return _cudnn_forward(x, weights, h, c, reverse, differentiable)
    sizes: list[int] = []  # of packed sequences
    shared = x, w_ih, w_hh, b_ih, b_hh, h, c, reverse, sizes, _MODE, h.shape[-1], 1, has_biases
    # The library's operator asks torch, and not its caller, whether anybody will differentiate.
    with torch.set_grad_enabled(differentiable):
        *results, kept = torch.ops.aten.mkldnn_rnn_layer(*shared, False, False, differentiable)
    return (*results, kept if differentiable else x.new_empty(0, dtype=torch.uint8))


@implements(
    _BACKWARD,
    "(Tensor x, Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh, Tensor h, Tensor c,"
    " Tensor states, Tensor last_h, Tensor last_c, Tensor? grad_states, Tensor? grad_h,"
    " Tensor? grad_c, Tensor kept, bool reverse, bool has_biases)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward(*args: Any) -> tuple[torch.Tensor, ...]:
    """Compute an LSTM layer's gradients of x, weights, biases, h and c."""
    *given, kept, reverse, has_biases = args
    if given[0].is_cuda:
        return _backward_on_gpu(given, kept, reverse, has_biases)
    units, sizes = given[5].shape[-1], list[int]()
    how = reverse, _MODE, units, 1, has_biases, True, False, sizes, False
    results = list(torch.ops.aten.mkldnn_rnn_layer_backward(*given, *how, kept))
    results[4] = results[4].clone()  # both biases have one gradient, which is one tensor there
    return tuple(results)


def _weights_of_gpu(
    w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: torch.Tensor, b_hh: torch.Tensor, has_biases: bool
) -> list[torch.Tensor]:
    """Return the four weights and biases for cuDNN; zeros without biases."""
    none = w_ih.new_zeros(w_ih.shape[0])
    return [w_ih, w_hh, b_ih, b_hh] if has_biases else [w_ih, w_hh, none, none]


def _backward_on_gpu(
    given: list[Any], kept: torch.Tensor, reverse: bool, has_biases: bool
) -> tuple[torch.Tensor, ...]:
    x, w_ih, w_hh, b_ih, b_hh, h, c, states, _, _, *gradients = given
    weights = _weights_of_gpu(w_ih, w_hh, b_ih, b_hh, has_biases)
    of_states, of_h, of_c = gradients
    results = _cudnn_backward(x, weights, (h, c), states, (of_states, of_h, of_c), kept, reverse)
    if has_biases:
        return results
    return (*results[:3], torch.zeros_like(b_ih), torch.zeros_like(b_hh), *results[5:])


forward = torch.ops.abele.lstm.default
backward = torch.ops.abele.lstm_backward.default


@shapes_of(_FORWARD)
def _forward_shape(x: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...]:
    *_, h, c, _, _, differentiable = others
    steps, batch, features = x.shape
    kept = _kept_bytes(steps, batch, features, h.shape[-1]) if differentiable else 0
    states = x.new_empty((steps, *h.shape))
    return states, h.new_empty(h.shape), c.new_empty(c.shape), x.new_empty(kept, dtype=torch.uint8)


@shapes_of(_BACKWARD)
def _backward_shape(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(each.new_empty(each.shape) for each in args[:7])


@functools.cache
def _kept_bytes(steps: int, batch: int, features: int, units: int) -> int:
    """Return the bytes that the library saves for backward; extrapolated for many steps.

    Nobody but the library knows, so a few steps of zeros are computed.
    """
    few, more = (_probed(min(steps, each), batch, features, units) for each in _PROBES)
    return more + (more - few) * max(0, steps - _PROBES[1]) // (_PROBES[1] - _PROBES[0])


def _probed(steps: int, batch: int, features: int, units: int) -> int:
    with _torch.outside_the_trace(), _torch.without_torch_function_modes():
        x, state = torch.zeros(steps, batch, features), torch.zeros(batch, units)
        weights = torch.zeros(4 * units, features), torch.zeros(4 * units, units)
        bias = torch.zeros(4 * units)
        return forward(x, *weights, bias, bias, state, state, False, True, True)[3].numel()


def forward_of(*args: Any) -> tuple[torch.Tensor, ...]:
    """Call ``forward`` with the arguments of the library's LSTM operator."""
    *given, h, c, reverse = args[:8]
    settings = reverse, args[12], torch.is_grad_enabled()
    if h.dim() == 2:
        return forward(*given, h, c, *settings)
    # In inference mode torch gives h and c a dimension of layers, of size 1.
    states, *last, kept = forward(*given, h[0], c[0], *settings)
    return (states, *(each[None] for each in last), kept)


def backward_of(*args: Any) -> tuple[torch.Tensor, ...]:
    """Call ``backward`` with the arguments of the library's LSTM backward operator."""
    reverse, has_biases, kept = args[13], args[17], args[22]
    return backward(*args[:13], kept, reverse, has_biases)


# -- cuDNN ------------------------------------------------------------------------------------

_LAYERS = 1
_ALIGNED = 256  # bytes; what cuDNN keeps for backward begins at a multiple


def _cudnn_forward(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    h: torch.Tensor,
    c: torch.Tensor,
    reverse: bool,
    differentiable: bool,
) -> tuple[torch.Tensor, ...]:
    """Compute all time steps of an LSTM layer with cuDNN; see ``_forward``.

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
    how = _settings(h, train=differentiable)
    with warnings.catch_warnings():  # that weights lie apart, as those of a session do
        warnings.simplefilter("ignore")
        states, last_h, last_c, reserved, packed = _torch.cudnn_rnn(
            given, list(weights), len(weights), None, h[None], c[None], *how
        )
    states = states.flip(0) if reverse else states
    kept = _joined(packed, reserved) if differentiable else x.new_empty(0, dtype=torch.uint8)
    return states, last_h[0], last_c[0], kept


def _cudnn_backward(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    state: tuple[torch.Tensor, torch.Tensor],
    states: torch.Tensor,
    gradients: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
    kept: torch.Tensor,
    reverse: bool,
) -> tuple[torch.Tensor, ...]:
    """Compute an LSTM layer's gradients of x, weights, and initial h and c with cuDNN.

    Args:
        x: as for forward.
        weights: as for forward.
        state: h and c before the first step.
        states: what forward returned first.
        gradients: of forward's first three results; None for zero.
        kept: what it returned last.
        reverse: as for forward.
    """
    h, c = state
    of_states, of_h, of_c = gradients
    if reverse:
        x, states = x.flip(0), states.flip(0)
        of_states = None if of_states is None else of_states.flip(0)
    packed, reserved = _apart(kept, sum(each.numel() for each in weights))
    of_x, before_h, before_c, of_weights = torch.ops.aten._cudnn_rnn_backward.default(
        *(x, list(weights), len(weights), packed, h[None], c[None], states, of_states),
        *(_row(of_h), _row(of_c), *_settings(h, train=True), reserved, [True] * 4),
    )
    of_x = of_x.flip(0) if reverse else of_x
    return of_x, *of_weights, before_h[0], before_c[0]


def _row(gradient: torch.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None else gradient[None]


def _settings(h: torch.Tensor, *, train: bool) -> tuple[Any, ...]:
    """Return cuDNN's settings of an LSTM layer: sizes, no dropout, one direction, not packed."""
    return _MODE, h.shape[-1], 0, _LAYERS, False, 0.0, train, False, [], None


def _joined(packed: torch.Tensor, reserved: torch.Tensor) -> torch.Tensor:
    """Concatenate packed cuDNN weights and reserve space into one byte tensor."""
    first = packed.view(-1).view(torch.uint8)
    gap = first.new_empty(-first.numel() % _ALIGNED)
    return torch.cat([first, gap, reserved.view(-1)])


def _apart(kept: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Split a byte tensor into packed cuDNN weights (``count`` float32) and reserve space."""
    size = count * torch.float32.itemsize
    return kept[:size].view(torch.float32), kept[size + -size % _ALIGNED :]

"""The loop of an LSTM and its gradients are what torch's layer and autograd make."""

import pytest
import torch
from torch import nn

from abele.ops import lstm_loop

STEPS, BATCH, FEATURES, UNITS = 5, 3, 4, 6


def of_torch(layer, x, h, c, *, reverse):
    """Results of one direction, the turned one with its steps in the order of ``x``."""
    states, (last_h, last_c) = layer(x.flip(0) if reverse else x, (h[None], c[None]))
    return (states.flip(0) if reverse else states), last_h[0], last_c[0]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_as_torchs_layer(reverse, bias):
    torch.manual_seed(0)
    layer = nn.LSTM(FEATURES, UNITS, bias=bias).double()
    x = torch.randn(STEPS, BATCH, FEATURES, dtype=torch.float64)
    h, c = (torch.randn(BATCH, UNITS, dtype=torch.float64, requires_grad=True) for _ in range(2))
    inputs = x @ layer.weight_ih_l0.t() + (layer.bias_ih_l0 if bias else 0.0)
    weight, b_hh = layer.weight_hh_l0, layer.bias_hh_l0 if bias else None
    wanted = of_torch(layer, x, h, c, reverse=reverse)
    with torch.no_grad():
        states, cells, gates = lstm_loop.forward(inputs, weight, b_hh, h, c, reverse, True)
    first, last = (0, 0) if reverse else (1, STEPS)
    torch.testing.assert_close((states[first : first + STEPS], states[last], cells[last]), wanted)

    grads = [torch.randn_like(each) for each in wanted]
    leaves = [h, c, layer.weight_hh_l0, *([layer.bias_hh_l0] if bias else [])]
    expected = torch.autograd.grad(wanted, leaves, grads)
    with torch.no_grad():
        made = lstm_loop.backward(*grads, weight, cells, gates, reverse)
    of_inputs = made[0].flatten(0, 1)
    before = states[1 - first : 1 - first + STEPS].flatten(0, 1)
    ours = [*made[1:], of_inputs.t() @ before, *([of_inputs.sum(0)] if bias else [])]
    torch.testing.assert_close(ours, expected)


def test_what_is_not_kept_is_one_step():
    inputs, weight = torch.randn(STEPS, BATCH, 4 * UNITS), torch.randn(4 * UNITS, UNITS)
    state = torch.zeros(BATCH, UNITS)
    kept = lstm_loop.forward(inputs, weight, None, state, state, False, True)
    states, cells, gates = lstm_loop.forward(inputs, weight, None, state, state, False, False)
    assert torch.equal(states, kept[0])
    assert torch.equal(cells, kept[1][-1:])
    assert gates.shape == (1, BATCH, 4 * UNITS)


@pytest.mark.parametrize("kept", [False, True])
def test_sizes_are_known_without_data(kept):
    given = [torch.randn(STEPS, BATCH, 4 * UNITS), torch.randn(4 * UNITS, UNITS), None]
    given += [torch.zeros(BATCH, UNITS), torch.zeros(BATCH, UNITS), False, kept]
    on_meta = [each.to("meta") if isinstance(each, torch.Tensor) else each for each in given]
    shapes = [each.shape for each in lstm_loop.forward(*on_meta)]
    assert shapes == [each.shape for each in lstm_loop.forward(*given)]

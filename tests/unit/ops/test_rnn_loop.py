"""The loop of a layer without gates and its gradients are what torch's layer and autograd make."""

import pytest
import torch
from torch import nn

from abele.ops import rnn_loop

STEPS, BATCH, FEATURES, UNITS = 5, 3, 4, 6


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_as_torchs_layer(relu, reverse, bias):
    torch.manual_seed(0)
    activation = "relu" if relu else "tanh"
    layer = nn.RNN(FEATURES, UNITS, bias=bias, nonlinearity=activation).double()
    x = torch.randn(STEPS, BATCH, FEATURES, dtype=torch.float64)
    h = torch.randn(BATCH, UNITS, dtype=torch.float64, requires_grad=True)
    inputs = x @ layer.weight_ih_l0.t() + (layer.bias_ih_l0 if bias else 0.0)
    weight, b_hh = layer.weight_hh_l0, layer.bias_hh_l0 if bias else None
    states, last = layer(x.flip(0) if reverse else x, h[None])
    wanted = (states.flip(0) if reverse else states), last[0]
    with torch.no_grad():
        states = rnn_loop.forward(inputs, weight, b_hh, h, relu, reverse)
    first, after = (0, 0) if reverse else (1, STEPS)
    torch.testing.assert_close((states[first : first + STEPS], states[after]), wanted)

    grads = [torch.randn_like(each) for each in wanted]
    expected = torch.autograd.grad(wanted, [h, weight, *([b_hh] if bias else [])], grads)
    with torch.no_grad():
        made = rnn_loop.backward(*grads, weight, states, relu, reverse)
    of_inputs = made[0].flatten(0, 1)
    before = states[1 - first : 1 - first + STEPS].flatten(0, 1)
    ours = [made[1], of_inputs.t() @ before, *([of_inputs.sum(0)] if bias else [])]
    torch.testing.assert_close(ours, list(expected))


def test_sizes_are_known_without_data():
    given = [torch.randn(STEPS, BATCH, UNITS), torch.randn(UNITS, UNITS), None]
    given += [torch.zeros(BATCH, UNITS), False, False]
    on_meta = [each.to("meta") if isinstance(each, torch.Tensor) else each for each in given]
    states = rnn_loop.forward(*given)
    assert rnn_loop.forward(*on_meta).shape == states.shape
    shapes = [e.shape for e in rnn_loop.backward(None, None, given[1], states, False, False)]
    none = given[1].to("meta"), states.to("meta")
    assert [e.shape for e in rnn_loop.backward(None, None, *none, False, False)] == shapes

"""The loop of a GRU and its gradients are what torch's layer and autograd make."""

import pytest
import torch
from torch import nn

from abele.ops import gru_loop

STEPS, BATCH, FEATURES, UNITS = 5, 3, 4, 6


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_as_torchs_layer(reverse, bias):
    torch.manual_seed(0)
    layer = nn.GRU(FEATURES, UNITS, bias=bias).double()
    x = torch.randn(STEPS, BATCH, FEATURES, dtype=torch.float64)
    h = torch.randn(BATCH, UNITS, dtype=torch.float64, requires_grad=True)
    inputs = x @ layer.weight_ih_l0.t() + (layer.bias_ih_l0 if bias else 0.0)
    weight, b_hh = layer.weight_hh_l0, layer.bias_hh_l0 if bias else None
    states, last = layer(x.flip(0) if reverse else x, h[None])
    wanted = (states.flip(0) if reverse else states), last[0]
    with torch.no_grad():
        states, gates = gru_loop.forward(inputs, weight, b_hh, h, reverse, True)
    first, after = (0, 0) if reverse else (1, STEPS)
    torch.testing.assert_close((states[first : first + STEPS], states[after]), wanted)

    grads = [torch.randn_like(each) for each in wanted]
    trained = [layer.weight_ih_l0, weight, *([layer.bias_ih_l0, b_hh] if bias else [])]
    expected = torch.autograd.grad(wanted, [h, *trained], grads)
    with torch.no_grad():
        made = gru_loop.backward(*grads, weight, states, gates, reverse)
    of_inputs, of_products = (each.flatten(0, 1) for each in made[:2])
    before = states[1 - first : 1 - first + STEPS].flatten(0, 1)
    ours = [made[2], of_inputs.t() @ x.flatten(0, 1), of_products.t() @ before]
    ours += [of_inputs.sum(0), of_products.sum(0)] if bias else []
    torch.testing.assert_close(ours, list(expected))


def test_what_is_not_kept_is_one_step():
    inputs, weight = torch.randn(STEPS, BATCH, 3 * UNITS), torch.randn(3 * UNITS, UNITS)
    state = torch.zeros(BATCH, UNITS)
    kept = gru_loop.forward(inputs, weight, None, state, False, True)
    states, gates = gru_loop.forward(inputs, weight, None, state, False, False)
    assert torch.equal(states, kept[0])
    assert gates.shape == (1, BATCH, 4 * UNITS)


@pytest.mark.parametrize("kept", [False, True])
def test_sizes_are_known_without_data(kept):
    given = [torch.randn(STEPS, BATCH, 3 * UNITS), torch.randn(3 * UNITS, UNITS), None]
    given += [torch.zeros(BATCH, UNITS), False, kept]
    on_meta = [each.to("meta") if isinstance(each, torch.Tensor) else each for each in given]
    made = gru_loop.forward(*given)
    assert [each.shape for each in gru_loop.forward(*on_meta)] == [each.shape for each in made]
    if kept:
        shapes = [each.shape for each in gru_loop.backward(None, given[3], given[1], *made, False)]
        none = [given[3].to("meta"), given[1].to("meta"), *(each.to("meta") for each in made)]
        assert [each.shape for each in gru_loop.backward(None, *none, False)] == shapes

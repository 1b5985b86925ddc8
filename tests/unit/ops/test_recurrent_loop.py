"""Loops of recurrent layers and their gradients are those of torch's layers and autograd."""

import functools

import pytest
import torch
from torch import nn

from abele.ops import recurrent_loop
from abele.ops.recurrent_cells import CELLS

STEPS, BATCH, FEATURES, UNITS = 5, 3, 4, 6
LAYERS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": functools.partial(nn.RNN, nonlinearity="relu"),
}


def of_torch(layer, x, state, *, reverse):
    """Results of one direction, the reversed one with its steps in the order of ``x``."""
    given = tuple(each[None] for each in state)
    states, last = layer(x.flip(0) if reverse else x, given if len(given) > 1 else given[0])
    last = last if len(given) > 1 else (last,)
    return states.flip(0) if reverse else states, *(each[0] for each in last)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_as_torchs_layer(kind, reverse, bias):
    torch.manual_seed(0)
    layer = LAYERS[kind](FEATURES, UNITS, bias=bias).double()
    x = torch.randn(STEPS, BATCH, FEATURES, dtype=torch.float64)
    state = [
        torch.randn(BATCH, UNITS, dtype=torch.float64, requires_grad=True)
        for _ in range(CELLS[kind].states)
    ]
    inputs = x @ layer.weight_ih_l0.t() + (layer.bias_ih_l0 if bias else 0.0)
    weight, b_hh = layer.weight_hh_l0, layer.bias_hh_l0 if bias else None
    wanted = of_torch(layer, x, state, reverse=reverse)
    with torch.no_grad():
        given = inputs, weight, b_hh, *[*state, None][:2]
        made = recurrent_loop.forward(kind, *given, reverse, True)
    kept = dict(zip(recurrent_loop.results(kind), made, strict=True))
    first, last = (0, 0) if reverse else (1, STEPS)
    ours = kept["states"][first : first + STEPS], *(each[last] for each in made[: len(state)])
    torch.testing.assert_close(ours, wanted)

    grads = [torch.randn_like(each) for each in wanted]
    trained = [layer.weight_ih_l0, weight, *([layer.bias_ih_l0, b_hh] if bias else [])]
    expected = torch.autograd.grad(wanted, [*state, *trained], grads)
    with torch.no_grad():
        known = [kept.get(name) for name in ("states", "cells", "gates")]
        known[0] = known[0] if CELLS[kind].reads_h else None
        made = recurrent_loop.backward(kind, *[*grads, None][:3], weight, *known, reverse)
    made = dict(zip(recurrent_loop.gradients(kind), made, strict=True))
    of_inputs = made["inputs"].flatten(0, 1)
    of_products = made.get("products", made["inputs"]).flatten(0, 1)
    before = kept["states"][1 - first : 1 - first + STEPS].flatten(0, 1)
    ours = [made[name] for name in ("h", "c") if name in made]
    ours += [of_inputs.t() @ x.flatten(0, 1), of_products.t() @ before]
    ours += [of_inputs.sum(0), of_products.sum(0)] if bias else []
    torch.testing.assert_close(ours, list(expected))


def arguments(kind, *, kept):
    width, torch_state = CELLS[kind].gates * UNITS, torch.zeros(BATCH, UNITS)
    c = torch_state if kind == "lstm" else None
    inputs, weight = torch.randn(STEPS, BATCH, width), torch.randn(width, UNITS)
    return [inputs, weight, None, torch_state, c, False, kept]


@pytest.mark.parametrize("kind", LAYERS)
def test_what_is_not_kept_is_one_step(kind):
    given = arguments(kind, kept=True)
    kept = recurrent_loop.forward(kind, *given)
    states, *others = recurrent_loop.forward(kind, *given[:-1], False)
    assert torch.equal(states, kept[0])
    assert all(torch.equal(few, all_[-1:]) for few, all_ in zip(others, kept[1:], strict=True))


def on_meta(given):
    return [each.to("meta") if isinstance(each, torch.Tensor) else each for each in given]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("kept", [False, True])
def test_sizes_are_known_without_data(kind, kept):
    given = arguments(kind, kept=kept)
    made = recurrent_loop.forward(kind, *given)
    shapes = [each.shape for each in recurrent_loop.forward(kind, *on_meta(given))]
    assert shapes == [each.shape for each in made]
    if kept:
        kept = dict(zip(recurrent_loop.results(kind), made, strict=True))
        known = [kept.get(name) for name in ("states", "cells", "gates")]
        given = None, None, None, given[1], *known, False
        shapes = [each.shape for each in recurrent_loop.backward(kind, *given)]
        without = recurrent_loop.backward(kind, *on_meta(given))
        assert [each.shape for each in without] == shapes

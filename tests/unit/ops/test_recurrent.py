"""A GRU, or a layer without gates, as one operator has the bits of torch's own form."""

import pytest
import torch

from abele.ops import recurrent

FUNCTIONS = {"gru": torch.gru, "rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu}
GATES = {"gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
STEPS, BATCH, FEATURES, UNITS = 9, 5, 7, 33


def tensors(kind, *, bias=True, seed=0):
    """x, h and weights."""
    torch.manual_seed(seed)
    rows = GATES[kind] * UNITS
    shapes = [(rows, FEATURES), (rows, UNITS), *([(rows,), (rows,)] if bias else [])]
    weights = [torch.randn(shape) * 0.4 for shape in shapes]
    return torch.randn(STEPS, BATCH, FEATURES), torch.randn(BATCH, UNITS), weights


def leaves(tensors):
    return [each.clone().requires_grad_() for each in tensors]


def of_torch(kind, x, h, weights, *, reverse=False):
    """Torch's function; the turned direction is the second of two, beside one of other weights."""
    biased, function = len(weights) > 2, FUNCTIONS[kind]
    if not reverse:
        states, last = function(x, h[None], weights, biased, 1, 0.0, True, False, False)
        return states, last[0]
    other = [each.detach() * 0.5 for each in weights]
    both = torch.stack([h.detach(), h])
    states, last = function(x, both, [*other, *weights], biased, 1, 0.0, True, True, False)
    return states[..., UNITS:], last[1]


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("of_states", "of_last"), [(True, True), (True, False), (False, True)])
def test_bits_are_torchs(kind, reverse, bias, of_states, of_last):
    x, h, weights = tensors(kind, bias=bias)
    ours, theirs = leaves([x, h, *weights]), leaves([x, h, *weights])
    if reverse:  # x also has a gradient of the other direction there
        ours[0], theirs[0] = x, x
    made = recurrent.forward(kind, ours[0], ours[1], ours[2:], reverse, True, True)[:2]
    wanted = of_torch(kind, theirs[0], theirs[1], theirs[2:], reverse=reverse)
    assert all(map(torch.equal, made, wanted))
    seeds = [torch.randn_like(each) for each in wanted]
    used = [i for i, each in enumerate((of_states, of_last)) if each]
    for results, given in ((made, ours), (wanted, theirs)):
        heads = [results[i] for i in used]
        torch.autograd.backward(heads, [seeds[i] for i in used], inputs=given[reverse:])
    for a, b in zip(ours[reverse:], theirs[reverse:], strict=True):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_bits_of_inputs_in_another_order(kind):
    x, h, weights = tensors(kind)
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    for trained in (False, True):
        given = leaves(weights) if trained else weights
        made = recurrent.forward(kind, turned, h, given, False, trained, trained)[:2]
        assert all(map(torch.equal, made, of_torch(kind, turned, h, given)))


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_weight_that_is_not_trained_has_no_gradient(kind):
    x, h, weights = tensors(kind)
    states, last, kept = recurrent.forward(kind, x, h, weights, False, False, True)
    given = states, kept, torch.ones_like(states), torch.ones_like(last)
    of_weight = recurrent.backward(kind, x, h, weights, False, False, *given)[2]
    assert of_weight.shape == weights[0].shape
    assert not of_weight.any()


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("differentiable", [False, True])
def test_sizes_are_known_without_data(kind, differentiable):
    x, h, weights = tensors(kind)
    on_meta = x.to("meta"), h.to("meta"), [each.to("meta") for each in weights]
    settings = False, False, differentiable
    made = recurrent.forward(kind, x, h, weights, *settings)
    shapes = [each.shape for each in recurrent.forward(kind, *on_meta, *settings)]
    assert shapes == [each.shape for each in made]
    if differentiable:
        states, _, kept = made
        given = states, kept, states, None
        gradients = recurrent.backward(kind, x, h, weights, *settings[:2], *given)
        without = [None if each is None else each.to("meta") for each in given]
        shapes = [e.shape for e in recurrent.backward(kind, *on_meta, *settings[:2], *without)]
        assert shapes == [each.shape for each in gradients]


def test_the_gradient_of_a_gradient_needs_steps():
    x, h, weights = tensors("gru")
    weights = leaves(weights)
    states, *_ = recurrent.forward("gru", x, h, weights, False, True, True)
    with pytest.raises(recurrent.StepsNeeded):
        torch.autograd.grad(states.sum(), weights, create_graph=True)

"""Optimizers inside wrapped models compute what torch's compute, group by group."""

import copy
import pickle

import pytest
import torch

import poptorch
from helpers.wrapping import options, plain_steps, rows, scorer, sgd, trainer, weights
from poptorch import optim


def _after(optimizer_of, steps=3):
    """Weights of a scorer that a wrapper has trained."""
    model = scorer()
    wrapped = poptorch.trainingModel(model, options(), optimizer_of(model))
    for step in range(steps):
        wrapped(*rows(4, seed=step))
    return weights(model)


def _plain_after(optimizer_of, steps=3):
    model = scorer()
    plain_steps(model, optimizer_of(model), [[rows(4, seed=step)] for step in range(steps)])
    return weights(model)


def test_dampening_acts_on_the_first_step():
    params = _after(lambda m: optim.SGD(m.parameters(), 0.1, momentum=0.9, dampening=0.5), steps=1)
    expected = _plain_after(lambda m: torch.optim.SGD(m.parameters(), lr=0.05), steps=1)
    torch.testing.assert_close(params, expected)


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW])
def test_clipping_is_that_of_torch(kind):
    # Two groups: the norm is over the parameters of both.
    def groups(m):
        return [{"params": [p]} for p in m.parameters()]

    params = _after(lambda m: kind(groups(m), lr=0.1, max_grad_norm=0.05))

    class Clipped(getattr(torch.optim, kind.__name__)):
        def step(self, closure=None):
            params = [p for group in self.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(params, 0.05)
            return super().step(closure)

    expected = _plain_after(lambda m: Clipped(m.parameters(), lr=0.1))
    torch.testing.assert_close(params, expected, rtol=0, atol=1e-6)


def test_clipping_acts_on_the_reduced_gradient():
    model, plain = scorer(), scorer()
    optimizer = optim.SGD(model.parameters(), lr=0.1, max_grad_norm=0.05)
    trainer(model, optimizer, gradientAccumulation=4)(*rows(8))
    plain(*rows(8))[0].backward()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
    sgd(plain).step()
    torch.testing.assert_close(weights(model), weights(plain), rtol=0, atol=1e-6)


@pytest.mark.parametrize("scaling", [1024.0, 3.0])
@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW, optim.LAMB])
def test_loss_scaling_is_neutral(kind, scaling):
    params = _after(lambda m: kind(m.parameters(), lr=0.1, loss_scaling=scaling))
    torch.testing.assert_close(params, _after(lambda m: kind(m.parameters(), lr=0.1)))


def test_a_variable_loss_scaling_doubles_and_halves():
    model = scorer()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, loss_scaling=64.0)
    wrapped = trainer(model, optimizer)
    for step, factor in enumerate((1.0, 2.0, 2.0, 0.5)):
        optimizer.loss_scaling *= factor
        wrapped.setOptimizer(optimizer)
        wrapped(*rows(4, seed=step))
    # Powers of two round nothing.
    expected = _plain_after(lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9), steps=4)
    assert torch.equal(weights(model), expected)


def test_the_returned_loss_is_not_scaled():
    model = scorer()
    loss, _ = trainer(model, optim.SGD(model.parameters(), 0.1, loss_scaling=64.0))(*rows(4))
    assert torch.equal(loss, scorer()(*rows(4))[0])


def test_each_group_has_its_own_values():
    model = scorer()
    groups = [
        {"params": [model.fc.weight], "lr": 0.5},
        {"params": [model.fc.bias], "weight_decay": 0.1},
    ]
    plain = scorer()
    expected = [
        {"params": [plain.fc.weight], "lr": 0.5},
        {"params": [plain.fc.bias], "weight_decay": 0.1},
    ]
    wrapped = trainer(model, torch.optim.AdamW(groups, lr=0.1))
    plain_steps(plain, torch.optim.AdamW(expected, lr=0.1), [[rows(4)]] * 2)
    for _ in range(2):
        wrapped(*rows(4))
    assert torch.equal(weights(model), weights(plain))


def test_parameters_outside_the_optimizer_are_not_updated():
    model = scorer()
    trainer(model, torch.optim.SGD([model.fc.bias], lr=0.1))(*rows(4))
    assert torch.equal(model.fc.weight, scorer().fc.weight)


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))],  # noqa: S301
    ids=["copy", "deepcopy", "pickle"],
)
@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.LAMB])
def test_copies_keep_what_this_package_adds(kind, duplicate):
    original = kind(scorer().parameters(), lr=0.1, loss_scaling=4.0, accum_type=torch.float16)
    original.variable_attrs.markAsConstant("lr")
    original.extra = "a user's own"
    result = duplicate(original)
    assert (result.loss_scaling, result.extra) == (4.0, "a user's own")
    assert result.variable_attrs.isConstant("lr")
    assert result.accum_type is torch.float16
    assert not result.variable_attrs.isConstant("loss_scaling")
    assert result.param_groups[0]["lr"] == 0.1

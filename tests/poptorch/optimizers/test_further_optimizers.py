"""Optimizers that ``torch.optim`` has and the original does not: numbers that change, replicas."""

import pytest
import torch

import poptorch
from helpers.wrapping import options, plain_steps, rows, scorer, trainer, weights

MAKERS = {
    "Adadelta": {"lr": 0.5, "weight_decay": 0.1, "eps": 1e-3},
    "Adagrad": {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-3},
    "Adamax": {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-3},
    "NAdam": {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-3},
    "RAdam": {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-3},
    "ASGD": {"lr": 0.1, "weight_decay": 0.1},
    "Rprop": {"lr": 0.1},
}
of_every_kind = pytest.mark.parametrize("name", MAKERS)


def made(name, **settings):
    """A scorer and its optimizer."""
    model = scorer()
    return model, getattr(torch.optim, name)(model.parameters(), **MAKERS[name] | settings)


@of_every_kind
def test_numbers_change_between_calls(name):
    (model, optimizer), (plain, theirs) = made(name), made(name)
    wrapped = trainer(model, optimizer)
    for step in range(8):
        for group in (*optimizer.param_groups, *theirs.param_groups):
            for number in ("lr", "weight_decay", "eps"):
                if number in group:
                    group[number] *= 0.8
        wrapped.setOptimizer(optimizer)
        wrapped(*rows(4, seed=step))
        plain_steps(plain, theirs, [[rows(4, seed=step)]])
    assert torch.equal(weights(model), weights(plain))


def test_a_number_that_was_compiled_in_is_refused_without_advice_that_does_not_help():
    model, optimizer = made("Adadelta")
    wrapped = trainer(model, optimizer)
    wrapped(*rows(4))
    optimizer.param_groups[0]["rho"] = 0.5
    with pytest.raises(poptorch.Error, match=r"constant rho of group 0: 0\.9 to 0\.5") as caught:
        wrapped.setOptimizer(optimizer)
    assert "markAsVariable" not in str(caught.value)


def test_half_weights_are_updated_in_float32():
    model, plain = scorer().half(), scorer().half().float()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
    theirs = torch.optim.Adadelta(plain.parameters(), lr=0.5)
    wrapped = poptorch.trainingModel(model, options(), optimizer)
    for step in range(3):
        wrapped(*(each.half() for each in rows(4, seed=step)))
        plain_steps(plain, theirs, [[rows(4, seed=step)]])
    torch.testing.assert_close(weights(model).float(), weights(plain), rtol=5e-3, atol=2e-3)
    assert all(value.dtype is torch.float16 for value in model.parameters())

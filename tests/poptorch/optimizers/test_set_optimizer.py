"""What may change in an optimizer after compiling, and from when on it counts."""

import pytest
import torch

import poptorch
from helpers.wrapping import plain_steps, rows, running, scorer, sgd, trainer, weights
from poptorch import optim


def test_a_changed_rate_counts_from_set_optimizer_on():
    plain = scorer()
    plain_optimizer = sgd(plain)
    wrapped, model, optimizer = running(sgd)
    plain_steps(plain, plain_optimizer, [[rows(4)]])
    optimizer.param_groups[0]["lr"] = 0.7
    wrapped(*rows(4))  # still with the old rate
    plain_steps(plain, plain_optimizer, [[rows(4)]])
    wrapped.setOptimizer(optimizer)
    plain_optimizer.param_groups[0]["lr"] = 0.7
    wrapped(*rows(4))
    plain_steps(plain, plain_optimizer, [[rows(4)]])
    assert torch.equal(weights(model), weights(plain))


def test_a_rate_that_the_device_does_not_have_is_warned_of_once(caplog):
    wrapped, _, optimizer = running(sgd)
    for rate in (0.7, 0.6, 0.5):
        optimizer.param_groups[0]["lr"] = rate
        wrapped(*rows(4))
    (record,) = [each for each in caplog.records if "learning rate" in each.getMessage()]
    assert "is now 0.7, and the device still computes with 0.1" in record.getMessage()


def test_rates_that_are_sent_are_not_warned_of(caplog):
    wrapped, _, optimizer = running(sgd)
    for rate in (0.7, 0.6):
        optimizer.param_groups[0]["lr"] = rate
        wrapped.setOptimizer(optimizer)
        wrapped(*rows(4))
    assert not caplog.records


def test_another_optimizer_of_the_same_kind_keeps_the_momentum():
    wrapped, model, _ = running(lambda m: sgd(m, momentum=0.9))
    wrapped.setOptimizer(sgd(model, lr=0.0, momentum=0.9))
    before = weights(model)
    wrapped(*rows(4))
    assert torch.equal(weights(model), before)
    wrapped.setOptimizer(sgd(model, lr=0.1, momentum=0.9))
    wrapped(*rows(4))
    plain = scorer()
    velocity = sgd(plain, momentum=0.9)
    plain_steps(plain, velocity, [[rows(4)]])
    velocity.param_groups[0]["lr"] = 0.0
    plain_steps(plain, velocity, [[rows(4)]])
    velocity.param_groups[0]["lr"] = 0.1
    plain_steps(plain, velocity, [[rows(4)]])
    assert torch.equal(weights(model), weights(plain))


MAKERS = {
    "torch": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "torch with all": lambda m: sgd(m, momentum=0.9, dampening=0.1, weight_decay=0.1),
    "torch adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.1),
    "poptorch": lambda m: optim.SGD(m.parameters(), lr=0.1),
    "poptorch with scaling": lambda m: optim.SGD(m.parameters(), lr=0.1, loss_scaling=2.0),
    "poptorch adam": lambda m: optim.Adam(m.parameters(), betas=(0.5, 0.9)),
}


def _change(optimizer, name, value):
    if name == "loss_scaling":
        optimizer.loss_scaling = value
    else:
        optimizer.param_groups[0][name] = value


@pytest.mark.parametrize(
    ("maker", "name", "value", "named"),
    [
        ("torch", "weight_decay", 0.1, "weight_decay of group 0"),
        ("torch", "momentum", 0.1, "momentum of group 0"),
        ("torch", "weight_decay", -0.0, "weight_decay of group 0: 0.0 to -0.0"),
        ("torch", "nesterov", True, "nesterov of group 0"),
        ("torch adam", "betas", (0.5, 0.9), "beta1 of group 0: 0.9 to 0.5"),
        ("torch adam", "eps", 0.1, "eps of group 0"),
        ("poptorch", "weight_decay", 0.1, "weight_decay of group 0: 0.0 to 0.1"),
        ("poptorch", "loss_scaling", 2.0, "loss_scaling: 1.0 to 2.0"),
        ("poptorch adam", "lr", 0.5, "lr of group 0: 0.001 to 0.5"),
    ],
)
def test_constants_cannot_change_and_are_named(maker, name, value, named):
    wrapped, _, optimizer = running(MAKERS[maker])
    _change(optimizer, name, value)
    with pytest.raises(poptorch.Error, match=f"not a valid replacement.*constant {named}"):
        wrapped.setOptimizer(optimizer)
    wrapped(*rows(4))


@pytest.mark.parametrize(
    ("maker", "name", "value", "variable"),
    [
        ("torch", "maximize", True, False),
        ("torch", "nesterov", True, False),
        ("torch adam", "eps", 0.1, True),
    ],
)
def test_only_numbers_are_said_to_be_able_to_change_later(maker, name, value, variable):
    wrapped, _, optimizer = running(MAKERS[maker])
    _change(optimizer, name, value)
    with pytest.raises(poptorch.Error, match=r"Wrap the model again .*model\.destroy") as caught:
        wrapped.setOptimizer(optimizer)
    assert ("markAsVariable" in str(caught.value)) == variable


@pytest.mark.parametrize(
    ("maker", "name", "value"),
    [
        ("torch with all", "weight_decay", 0.2),
        ("torch with all", "momentum", 0.0),
        ("torch with all", "dampening", 0.2),
        ("poptorch with scaling", "loss_scaling", 8.0),
        ("poptorch adam", "betas", (0.6, 0.7)),
    ],
)
def test_variables_can_change(maker, name, value):
    wrapped, _, optimizer = running(MAKERS[maker])
    _change(optimizer, name, value)
    wrapped.setOptimizer(optimizer)
    wrapped(*rows(4))


def test_marks_decide_what_is_variable():
    def make(model):
        optimizer = optim.Adam(model.parameters())
        optimizer.variable_attrs.markAsVariable("eps")
        return optimizer

    wrapped, _, optimizer = running(make)
    optimizer.param_groups[0]["eps"] = 0.1
    wrapped.setOptimizer(optimizer)
    optimizer.variable_attrs.markAsConstant("eps")
    with pytest.raises(poptorch.Error, match="constant eps of group 0"):
        wrapped.setOptimizer(optimizer)


def test_unknown_marks_are_refused():
    attributes = optim.SGD(scorer().parameters(), lr=0.1).variable_attrs
    assert not attributes.isConstant("lr")
    assert attributes.isConstant("momentum")
    for method in (attributes.isConstant, attributes.markAsConstant, attributes.markAsVariable):
        with pytest.raises(AssertionError, match="Unknown attribute 'speed'"):
            method("speed")


@pytest.mark.parametrize(
    "other",
    [
        lambda m: torch.optim.Adam(m.parameters()),
        lambda m: torch.optim.SGD([{"params": [p]} for p in m.parameters()], lr=0.1),
    ],
    ids=["another kind", "another number of groups"],
)
def test_kind_and_number_of_groups_cannot_change(other):
    wrapped, model, _ = running(sgd)
    with pytest.raises(poptorch.Error, match="the optimizer's type or number of groups"):
        wrapped.setOptimizer(other(model))


def test_before_compiling_anything_may_be_set(caplog):
    model = scorer()
    wrapped = trainer(model)
    wrapped.setOptimizer(torch.optim.Adam(model.parameters(), lr=0.1))
    wrapped(*rows(4))
    plain = scorer()
    plain_steps(plain, torch.optim.Adam(plain.parameters(), lr=0.1), [[rows(4)]])
    assert torch.equal(weights(model), weights(plain))
    assert caplog.text == ""

"""Optimizers that are refused, and what is announced about those that are accepted."""

import pytest
import torch

import poptorch
from helpers.wrapping import options, rows, scorer, sgd, trainer
from poptorch import optim


def _changed(optimizer, **values):
    optimizer.param_groups[0].update(values)
    return optimizer


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (
            lambda p: torch.optim.Adafactor(p),
            AssertionError,
            r"type Adafactor\. Use SGD, .* of poptorch.optim, or SGD, .* or Rprop of torch.optim",
        ),
        (
            lambda p: torch.optim.SparseAdam(list(p)),
            AssertionError,
            "Unsupported optimizer type SparseAdam: .* the gradients of a program are dense",
        ),
        (
            lambda p: _changed(torch.optim.Rprop(p), step_sizes=1.0),
            AssertionError,
            "Expected a pair of numbers for attribute step_sizes",
        ),
        (
            lambda p: _changed(torch.optim.Adam(p), betas=0.9),
            AssertionError,
            "Expected a pair of numbers for attribute betas",
        ),
    ],
)
def test_optimizers_that_cannot_be_converted(make, kind, words):
    model = scorer()
    with pytest.raises(kind, match=words):
        poptorch.trainingModel(model, options(), make(model.parameters()))


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.LAMB])
def test_accumulators_are_half_or_float(kind):
    with pytest.raises(AssertionError, match="Accumulation types must be"):
        kind(scorer().parameters(), lr=0.1, accum_type=torch.int32)


def test_a_norm_of_nan_is_refused():
    with pytest.raises(AssertionError, match="max_grad_norm must be a number"):
        optim.SGD(scorer().parameters(), lr=0.1, max_grad_norm=float("nan"))


def test_an_optimizer_of_another_model_is_announced(caplog):
    trainer(scorer(), sgd(scorer()))
    assert "holds none of the model's parameters" in caplog.text


STRATEGY = "meanAccumulationAndReplicationReductionStrategy"


def _strategy(wrapped):
    return wrapped.options.Training.meanAccumulationAndReplicationReductionStrategy


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.LAMB])
def test_half_accumulators_take_a_running_mean(kind):
    model, given = scorer(), options(gradientAccumulation=2)
    optimizer = kind(model.parameters(), lr=0.1, accum_type=torch.float16)
    wrapped = poptorch.trainingModel(model, given, optimizer)
    assert _strategy(wrapped) is poptorch.MeanReductionStrategy.Running
    assert getattr(given.Training, STRATEGY) is poptorch.MeanReductionStrategy.Post
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        wrapped.options.Training.gradientAccumulation(3)
    wrapped(*rows(8))
    wrapped.setOptimizer(optimizer)  # the same accumulators as compiled: nothing to refuse
    wrapped(*rows(8))


def test_half_accumulators_may_be_asked_for_until_compiling():
    model = scorer()
    wrapped = trainer(model, optim.SGD(model.parameters(), lr=0.1))
    assert _strategy(wrapped) is poptorch.MeanReductionStrategy.Post
    half = optim.SGD(model.parameters(), lr=0.1, accum_type=torch.float16)
    wrapped.setOptimizer(half)
    assert _strategy(wrapped) is poptorch.MeanReductionStrategy.Running


@pytest.mark.parametrize(
    "settings",
    [
        {"accum_type": torch.float32},
        {"velocity_accum_type": torch.float16},
        {"accum_type": torch.float16, "use_combined_accum": True},
    ],
)
def test_other_accumulators_leave_the_strategy(settings):
    model = scorer()
    wrapped = trainer(model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **settings))
    assert _strategy(wrapped) is poptorch.MeanReductionStrategy.Post


def test_velocity_scaling_of_combined_accumulators_is_a_value_of_each_group(caplog):
    model = scorer()
    groups = [{"params": [model.fc.weight], "velocity_scaling": 2.0}, {"params": [model.fc.bias]}]
    optimizer = optim.SGD(
        groups, lr=0.1, momentum=0.9, velocity_scaling=4.0, use_combined_accum=True
    )
    assert [group["velocity_scaling"] for group in optimizer.param_groups] == [2.0, 4.0]
    wrapped = trainer(model, optimizer)
    wrapped(*rows(4))
    assert caplog.text == ""
    _changed(optimizer, velocity_scaling="high")
    with pytest.raises(AssertionError, match="Expected a number for attribute velocity_scaling"):
        wrapped.setOptimizer(optimizer)
    del optimizer.param_groups[0]["velocity_scaling"]
    with pytest.raises(AssertionError, match="Mandatory attribute velocity_scaling not found"):
        wrapped.setOptimizer(optimizer)


def test_velocity_scaling_without_momentum_rounds_the_product_first(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    model, batch = scorer(), rows(4)
    optimizer = optim.SGD(model.parameters(), lr=0.1, velocity_scaling=0.1, use_combined_accum=True)
    wrapped, plain = trainer(model, optimizer), scorer()
    for rate in (0.1, 0.07, 0.0):  # the last is 0 / 0 of the two
        wrapped.setOptimizer(_changed(optimizer, lr=rate, velocity_scaling=rate))
        plain.zero_grad()
        plain(*batch)[0].backward()
        for each in plain.parameters():
            each.data.add_(-rate * each.grad)
        wrapped(*batch)
        assert all(map(torch.equal, model.parameters(), plain.parameters()))

"""``poptorch.resuming``: the state of a wrapper for checkpoints that a program keeps itself."""

import pytest
import torch

import poptorch
from helpers.wrapping import options, rows, running, scorer, sgd, trainer, weights
from poptorch import resuming


def momentum(model):
    return poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_another_wrapper_goes_on_to_the_bit():
    wrapped, model, optimizer = running(momentum)
    state, of_optimizer = resuming.state_of(wrapped), resuming.optimizer_state(optimizer)
    wrapped(*rows(4))
    again = scorer()
    other_optimizer = momentum(again)
    other = trainer(again, other_optimizer)
    resuming.put_optimizer(other_optimizer, of_optimizer)
    resuming.put_back(other, state, other_optimizer)
    other(*rows(4))
    assert torch.equal(weights(again), weights(model))


def test_an_optimizer_that_is_set_after_putting_back_wins():
    wrapped, _, _ = running(momentum)
    state = resuming.state_of(wrapped)
    model = scorer()
    other = trainer(model, momentum(model))
    resuming.put_back(other, state)
    before = weights(model).clone()
    other.setOptimizer(poptorch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9))
    other(*rows(4))
    assert torch.equal(weights(model), before)


def test_weights_under_the_names_of_the_module():
    wrapped, model, _ = running(momentum)
    named = resuming.named_weights(wrapped, resuming.state_of(wrapped)["tensors"])
    assert named.keys() == model.state_dict().keys()
    assert all(torch.equal(named[name], value) for name, value in model.state_dict().items())


def test_there_is_no_state_before_compiling():
    with pytest.raises(poptorch.Error, match="Model has not been compiled"):
        resuming.state_of(trainer(scorer()))


def test_what_a_training_wrapper_is():
    model = scorer()
    assert resuming.is_training_wrapper(trainer(model, sgd(model)))
    assert not resuming.is_training_wrapper(poptorch.inferenceModel(scorer(), options()))
    assert not resuming.is_training_wrapper(model)
    assert resuming.processes_of(trainer(scorer())) == 1

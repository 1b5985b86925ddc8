"""What happens to an optimizer's state when optimizers and wrappers change, go, or are copied."""

import copy
import gc
import pickle
import weakref

import pytest
import torch

import poptorch
from helpers.wrapping import options, rows, running, scorer, sgd, trainer, weights
from poptorch import optim


def momentum(model):
    return optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model):
    return optim.Adam(model.parameters(), lr=0.1)


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def zeros(state):
    """A copy of a state dictionary with fresh device state."""
    fresh = {name: torch.zeros_like(value) for name, value in state["ipu_state"].items()}
    return {**state, "ipu_state": fresh}


# -- another optimizer ---------------------------------------------------------------------------


def test_another_optimizer_leaves_the_state_with_the_old_one():
    wrapped, model, first = running(momentum)
    second = momentum(model)
    wrapped.setOptimizer(second)
    assert first.has_state()
    assert not first.ipu_state_is_dirty
    then = first.state_dict()["ipu_state"]
    assert same(second.state_dict()["ipu_state"], then)
    wrapped(*rows(4))
    assert same(first.state_dict()["ipu_state"], then)
    assert not same(second.state_dict()["ipu_state"], then)


def test_another_optimizer_brings_its_state_and_no_weights_move():
    wrapped, model, optimizer = running(momentum)
    plain_wrapped, plain, _ = running(momentum)
    saved = optimizer.state_dict()
    wrapped(*rows(4, seed=9))
    second = momentum(model)
    second.load_state_dict(zeros(saved))
    copies = []
    wrapped.copyWeightsToHost = lambda: copies.append(1)
    wrapped.setOptimizer(second)
    assert copies == []
    del wrapped.copyWeightsToHost
    plain_wrapped(*rows(4, seed=9))
    fresh = momentum(plain)
    plain_wrapped.destroy()
    for training in (wrapped, trainer(plain, fresh)):
        training(*rows(4))
    assert torch.equal(weights(model), weights(plain))


def test_an_optimizer_that_follows_one_of_torch_sees_its_state():
    wrapped, model, _ = running(lambda m: sgd(m, lr=0.1, momentum=0.5))
    follower = optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    wrapped.setOptimizer(follower)
    device = wrapped._executable.session.optimizer_state["fc.bias.momentum_buffer"]
    assert torch.equal(follower.state_dict()["ipu_state"]["Accl1___fc.bias"], device)


def test_destroy_lets_go_of_the_device():
    wrapped, model, _ = running(adam)
    inference = poptorch.inferenceModel(model, options())
    inference(*rows(4))
    sessions = [weakref.ref(each._executable.session) for each in (wrapped, inference)]
    wrapped.destroy()
    inference.destroy()
    gc.collect()
    assert [session() for session in sessions] == [None, None]


def test_torchs_optimizers_keep_their_state_on_the_device_over_a_detach():
    detached, model, _ = running(lambda m: sgd(m, momentum=0.9))
    undisturbed, plain, _ = running(lambda m: sgd(m, momentum=0.9))
    detached.detachFromDevice()
    for training in (detached, undisturbed):
        training(*rows(4))
    assert torch.equal(weights(model), weights(plain))


def test_torchs_optimizers_lose_their_state_at_destroy():
    wrapped, model, optimizer = running(lambda m: sgd(m, momentum=0.9))
    wrapped.destroy()
    again = trainer(model, optimizer)
    again.compile(*rows(4))
    assert not again._executable.session.optimizer_state["fc.bias.momentum_buffer"].any()


# -- lifetimes -----------------------------------------------------------------------------------


def undisturbed(make=adam):
    wrapped, model, _ = running(make)
    wrapped(*rows(4))
    return weights(model)


def _detached(wrapped, model, optimizer):
    wrapped.detachFromDevice()
    assert not optimizer.ipu_state_is_dirty
    return wrapped


def _destroyed(wrapped, model, optimizer):
    model.destroy()
    assert not optimizer.ipu_state_is_dirty
    return trainer(model, optimizer)


def _called_again(wrapped, model, optimizer):
    wrapped.destroy()
    return wrapped


def _weights_sent(wrapped, model, optimizer):
    wrapped.copyWeightsToHost()
    wrapped.copyWeightsToDevice()
    assert not optimizer.ipu_state_is_dirty
    return wrapped


def _copied(wrapped, model, optimizer):
    wrapped.setOptimizer(copy.copy(optimizer))
    return wrapped


MEANWHILE = [_detached, _destroyed, _called_again, _weights_sent, _copied]


@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("make", [momentum, adam])
def test_training_goes_on_as_if_nothing_had_happened(meanwhile, make):
    wrapped, model, optimizer = running(make)
    meanwhile(wrapped, model, optimizer)(*rows(4))
    assert torch.equal(weights(model), undisturbed(make))


def test_state_survives_a_wrapper_that_is_dropped():
    wrapped, model, optimizer = running(adam)
    del wrapped
    gc.collect()
    model.destroy()
    trainer(model, optimizer)(*rows(4))
    assert torch.equal(weights(model), undisturbed())


def test_an_optimizer_made_for_the_call_survives_destroy():
    model = scorer()
    wrapped = trainer(model, adam(model))
    gc.collect()
    wrapped(*rows(4))
    wrapped.destroy()
    wrapped(*rows(4))
    assert torch.equal(weights(model), undisturbed())


def test_an_optimizer_keeps_no_wrapper_alive():
    wrapped, _, optimizer = running(adam)
    state = wrapped._optimizer.state
    assert optimizer._connection() is state
    del wrapped, state
    # Nothing but counting references: no cycle may hold a device's memory.
    assert optimizer._connection() is None
    assert optimizer.state_dict()["ipu_state"]["Step___fc.bias"] == 1


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))],  # noqa: S301
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies_keep_the_state_and_are_connected_to_nothing(duplicate):
    wrapped, _, optimizer = running(adam)
    result = duplicate(optimizer)
    then = optimizer.state_dict()["ipu_state"]
    wrapped(*rows(4))
    assert result._connection() is None
    assert same(result.state_dict()["ipu_state"], then)
    assert result.param_groups[0]["lr"] == 0.1


def test_two_wrappers_cannot_both_own_an_optimizer():
    wrapped, _, optimizer = running(adam)
    model = scorer()
    trainer(model, optimizer)
    assert optimizer.state_dict()["ipu_state"]["Step___fc.bias"] == 1
    wrapped(*rows(4))
    assert optimizer.state_dict()["ipu_state"]["Step___fc.bias"] == 1


def test_an_inference_wrapper_has_nothing_to_do_with_it():
    wrapped, model, optimizer = running(adam)
    inference = poptorch.inferenceModel(model, options())
    inference(*rows(4))
    assert optimizer.ipu_state_is_dirty
    inference.copyWeightsToDevice()
    assert optimizer.ipu_state_is_dirty
    wrapped(*rows(4))

"""State of poptorch optimizers: names, reading, sending, and what happens when objects change."""

import copy
import gc
import inspect
import pickle
import weakref

import pytest
import torch

import poptorch
from helpers.wrapping import options, rows, running, scorer, sgd, trainer, weights
from poptorch import optim

PARAMS = ("fc.weight", "fc.bias")


def momentum(model, lr=0.1):
    return optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def adam(model, lr=0.1):
    return optim.Adam(model.parameters(), lr=lr)


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.LAMB])
def test_every_optimizer_has_the_members_of_the_original(kind):
    optimizer = kind(scorer().parameters(), lr=0.1)
    assert isinstance(optimizer, optim.Optimizer)
    assert optimizer.get_state_dict() == {"ipu_state": None, "ipu_param": None}
    assert not optimizer.has_state()
    assert not optimizer.host_state_is_dirty
    assert not optimizer.ipu_state_is_dirty
    for name in ("load_state_dict", "set_state_dict"):
        assert list(inspect.signature(getattr(optimizer, name)).parameters) == ["state"]


# -- reading -------------------------------------------------------------------------------------


def test_before_compiling_there_is_no_device_state():
    model = scorer()
    optimizer = adam(model)
    trainer(model, optimizer)
    state = optimizer.state_dict()
    assert list(state) == ["ipu_state", "ipu_param", "state", "param_groups"]
    assert state["ipu_state"] is None
    assert state["ipu_param"] is None
    assert state["param_groups"][0]["lr"] == 0.1
    assert not optimizer.has_state()


def test_after_compiling_there_is_fresh_state():
    model = scorer()
    optimizer = adam(model)
    trainer(model, optimizer).compile(*rows(4))
    state = optimizer.state_dict()["ipu_state"]
    assert set(state) == {f"{kind}___{p}" for kind in ("Accl1", "Accl2", "Step") for p in PARAMS}
    assert all(not value.any() for value in state.values())
    assert state["Accl1___fc.weight"].shape == (3, 4)
    assert optimizer.has_state()


def test_an_offline_device_has_no_state():
    model = scorer()
    optimizer = adam(model)
    wrapped = trainer(model, optimizer, connectionType=poptorch.ConnectionType.Never)
    wrapped.compile(*rows(4))
    assert optimizer.state_dict()["ipu_state"] is None


def test_values_are_those_of_torch():
    model, plain = scorer(), scorer()
    optimizer = adam(model)
    wrapped = trainer(model, optimizer)
    theirs = torch.optim.Adam(plain.parameters(), lr=0.1)
    for step in range(3):
        wrapped(*rows(4, seed=step))
        theirs.zero_grad()
        plain(*rows(4, seed=step))[0].backward()
        theirs.step()
    state = optimizer.state_dict()["ipu_state"]
    for name, param in plain.named_parameters():
        assert torch.equal(state[f"Accl1___{name}"], theirs.state[param]["exp_avg"])
        assert torch.equal(state[f"Accl2___{name}"], theirs.state[param]["exp_avg_sq"])
        assert state[f"Step___{name}"] == 3


NAMES = [
    (lambda m: optim.SGD(m.parameters(), lr=0.1), ()),
    (momentum, ("Accl1",)),
    (lambda m: optim.AdamW(m.parameters()), ("Accl1", "Accl2", "Step")),
    (lambda m: optim.LAMB(m.parameters()), ("Accl1", "Accl2", "Step")),
    (lambda m: optim.RMSprop(m.parameters()), ("Accl1",)),
    (lambda m: optim.RMSprop(m.parameters(), momentum=0.9), ("Accl1", "Accl3")),
    (
        lambda m: optim.RMSprop(m.parameters(), momentum=0.9, centered=True),
        ("Accl1", "Accl2", "Accl3"),
    ),
]


@pytest.mark.parametrize(("make", "kinds"), NAMES)
def test_names_of_every_optimizer(make, kinds):
    _, _, optimizer = running(make)
    expected = {f"{kind}___{param}" for kind in kinds for param in PARAMS}
    assert set(optimizer.state_dict()["ipu_state"]) == expected


def test_the_squares_of_the_tensorflow_variant_start_at_one():
    model = scorer()
    optimizer = optim.RMSprop(model.parameters(), use_tf_variant=True)
    trainer(model, optimizer).compile(*rows(4))
    assert (optimizer.state_dict()["ipu_state"]["Accl1___fc.bias"] == 1).all()


def test_accumulators_are_part_of_the_state():
    model = scorer()
    optimizer = momentum(model)
    wrapped = trainer(model, optimizer, gradientAccumulation=2)
    wrapped(*rows(4))
    state = optimizer.state_dict()["ipu_state"]
    assert set(state) == {f"{kind}___{p}" for kind in ("Accl1", "Accum") for p in PARAMS}
    assert not state["Accum___fc.weight"].any()


def test_a_frozen_parameter_has_no_state():
    model = scorer()
    model.fc.bias.requires_grad_(False)
    optimizer = momentum(model)
    trainer(model, optimizer)(*rows(4))
    assert set(optimizer.state_dict()["ipu_state"]) == {"Accl1___fc.weight"}


def test_numbers_of_sgd():
    def make(model):
        groups = [
            {"params": [model.fc.weight]},
            {"params": [model.fc.bias], "lr": 0.5, "weight_decay": 0.25},
        ]
        return optim.SGD(groups, 0.125, momentum=0.9, dampening=0.5, loss_scaling=4.0)

    _, _, optimizer = running(make)
    state = optimizer.state_dict()["ipu_param"]
    expected = {
        "lossScaling_FLOAT": 4.0,
        "scaledLearningRate0___default___FLOAT": 0.125 * 0.5 / 4,
        "scaledLearningRate0___specific___fc.weight": 0.125 * 0.5 / 4,
        "scaledLearningRate0___specific___fc.bias": 0.5 * 0.5 / 4,
        "weightDecayScaleFactor0___default___FLOAT": 1.0,
        "weightDecayScaleFactor0___specific___fc.weight": 1.0,
        "weightDecayScaleFactor0___specific___fc.bias": 1 - 0.5 * 0.5 * 0.25,
    }
    assert {name: value.item() for name, value in state.items()} == expected
    assert {value.dtype for value in state.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("make", "own"),
    [
        (adam, {"adamBeta1": 0.9, "adamBeta2": 0.999, "adamEps": 1e-8}),
        (lambda m: optim.LAMB(m.parameters(), lr=0.1), {"maxWeightNorm": 65500.0}),
        (
            lambda m: optim.RMSprop(m.parameters(), lr=0.1),
            {"adaptiveAlpha": 0.99, "adaptiveMomentum": 0.0, "adaptiveEps": 1e-8},
        ),
    ],
)
def test_numbers_of_the_others(make, own):
    _, _, optimizer = running(make)
    state = optimizer.state_dict()["ipu_param"]
    for name, value in {"learningRate": 0.1, **own}.items():
        assert state[f"{name}___specific___fc.bias"].item() == pytest.approx(value)
        assert state[f"{name}___default___FLOAT"].item() == pytest.approx(value)
    assert "weightDecay___specific___fc.weight" in state


def test_the_numbers_follow_set_optimizer():
    wrapped, _, optimizer = running(adam)
    optimizer.param_groups[0]["lr"] = 0.25
    name = "learningRate___specific___fc.bias"
    assert optimizer.state_dict()["ipu_param"][name] == torch.tensor(0.1)
    wrapped.setOptimizer(optimizer)
    assert optimizer.state_dict()["ipu_param"][name] == 0.25


def test_the_state_is_read_once_per_run():
    wrapped, _, optimizer = running(adam)
    assert optimizer.ipu_state_is_dirty
    first = optimizer.state_dict()["ipu_state"]
    assert not optimizer.ipu_state_is_dirty
    again = optimizer.state_dict()["ipu_state"]
    assert all(again[name] is value for name, value in first.items())
    wrapped(*rows(4))
    assert optimizer.ipu_state_is_dirty
    later = optimizer.state_dict()["ipu_state"]
    assert not torch.equal(later["Accl1___fc.weight"], first["Accl1___fc.weight"])


def test_reading_moves_no_weights():
    wrapped, _, optimizer = running(adam)
    copies = []
    wrapped.copyWeightsToHost = lambda: copies.append(1)
    optimizer.state_dict()
    assert copies == []


# -- loading: what is refused --------------------------------------------------------------------


@pytest.mark.parametrize("method", ["load_state_dict", "set_state_dict"])
def test_a_dictionary_of_torch_is_refused(method):
    theirs = torch.optim.Adam(scorer().parameters()).state_dict()
    with pytest.raises(RuntimeError, match="Only IPU optimizer states can be loaded"):
        getattr(adam(scorer()), method)(theirs)
    with pytest.raises(RuntimeError, match="Only IPU optimizer states"):
        getattr(adam(scorer()), method)({**theirs, "ipu_state": {}})


def test_state_of_another_shape_is_refused_before_anything_is_written():
    _, _, optimizer = running(adam)
    saved = optimizer.state_dict()
    saved["ipu_state"]["Step___fc.bias"] = torch.tensor(9.0)
    saved["ipu_state"]["Accl1___fc.weight"] = torch.zeros(1)
    wrapped, _, other = running(adam)
    before = other.state_dict()["ipu_state"]
    other.load_state_dict(saved)
    with pytest.raises(poptorch.Error, match=r"Accl1___fc.weight with shape \[1\].*\[3, 4\]"):
        wrapped(*rows(4))
    assert wrapped._executable.session.optimizer_state["fc.bias.step"] == before["Step___fc.bias"]


def test_entries_without_a_place_are_announced(caplog):
    _, _, optimizer = running(adam)
    wrapped, _, other = running(momentum)
    other.set_state_dict(optimizer.state_dict())
    wrapped(*rows(4))
    assert "no place for: Accl2___fc.bias, Accl2___fc.weight, Step___fc.bias" in caplog.text


# -- loading: when it counts ---------------------------------------------------------------------


def zeros(state):
    """A copy of a state dictionary with fresh device state."""
    fresh = {name: torch.zeros_like(value) for name, value in state["ipu_state"].items()}
    return {**state, "ipu_state": fresh}


def test_loaded_state_is_sent_at_the_next_run():
    wrapped, _, optimizer = running(momentum)
    device = wrapped._executable.session.optimizer_state["fc.bias.momentum_buffer"]
    optimizer.load_state_dict(zeros(optimizer.state_dict()))
    assert optimizer.host_state_is_dirty
    assert device.any()
    assert not optimizer.state_dict()["ipu_state"]["Accl1___fc.bias"].any()
    wrapped(*rows(4))
    assert not optimizer.host_state_is_dirty
    # With zeros before it, the velocity is the gradient alone.
    plain = scorer()
    fresh = momentum(plain)
    again = trainer(plain, fresh)
    for _ in range(2):
        optimizer.load_state_dict(zeros(optimizer.state_dict()))
        wrapped(*rows(4))
    for _ in range(4):
        again(*rows(4))
        fresh.load_state_dict(zeros(fresh.state_dict()))
    assert torch.equal(weights(wrapped.model), weights(plain))


def test_a_loaded_dictionary_is_copied_when_it_is_loaded():
    wrapped, _, optimizer = running(momentum)
    saved = zeros(optimizer.state_dict())
    optimizer.load_state_dict(saved)
    saved["ipu_state"]["Accl1___fc.bias"].fill_(7.0)
    assert not optimizer.state_dict()["ipu_state"]["Accl1___fc.bias"].any()
    wrapped(*rows(4))
    assert optimizer.state_dict()["ipu_state"]["Accl1___fc.bias"].abs().max() < 7


def test_missing_entries_keep_what_the_device_has():
    wrapped, _, optimizer = running(adam)
    kept = optimizer.state_dict()
    wrapped(*rows(4))
    now = optimizer.state_dict()["ipu_state"]
    part = {"Accl1___fc.bias": torch.full((3,), 5.0)}
    optimizer.load_state_dict({**kept, "ipu_state": part})
    expected = {**now, **part}
    assert same(optimizer.state_dict()["ipu_state"], expected)
    wrapped._optimizer.send_loaded_state()
    wrapped._optimizer.stale = True
    assert same(optimizer.state_dict()["ipu_state"], expected)


def test_a_part_loaded_before_compiling_is_completed_by_the_device():
    _, _, done = running(adam)
    part = {"Accl1___fc.bias": torch.full((3,), 5.0)}
    model = scorer()
    optimizer = adam(model)
    optimizer.load_state_dict({**done.state_dict(), "ipu_state": part})
    trainer(model, optimizer).compile(*rows(4))
    state = optimizer.state_dict()["ipu_state"]
    assert (state["Accl1___fc.bias"] == 5.0).all()
    assert len(state) == 6
    assert not state["Accl2___fc.bias"].any()


def test_a_dictionary_from_before_compiling_brings_its_groups_only():
    model = scorer()
    saved = adam(model, lr=0.0).state_dict()
    wrapped, model, optimizer = running(adam)
    moments = optimizer.state_dict()["ipu_state"]
    before = weights(model)
    optimizer.load_state_dict(saved)
    assert same(optimizer.state_dict()["ipu_state"], moments)
    wrapped(*rows(4))
    assert torch.equal(weights(model), before)


@pytest.mark.parametrize("compiled", [False, True])
def test_loaded_groups_count_without_set_optimizer(compiled):
    saved = adam(scorer(), lr=0.0).state_dict()
    model = scorer()
    optimizer = adam(model)
    wrapped = trainer(model, optimizer)
    if compiled:
        wrapped.compile(*rows(4))
    optimizer.load_state_dict(saved)
    wrapped(*rows(4))
    assert torch.equal(weights(model), weights(scorer()))


def test_a_loaded_constant_counts_until_compiling_and_is_refused_after():
    def plain_adam(model):
        return optim.Adam(model.parameters())

    saved = adam(scorer(), lr=0.0).state_dict()
    model = scorer()
    optimizer = plain_adam(model)
    wrapped = trainer(model, optimizer)
    optimizer.load_state_dict(saved)
    wrapped(*rows(4))
    assert torch.equal(weights(model), weights(scorer()))
    wrapped, _, optimizer = running(plain_adam)
    optimizer.load_state_dict(saved)
    with pytest.raises(poptorch.Error, match=r"constant lr of group 0: 0\.001 to 0\.0"):
        wrapped(*rows(4))


def test_a_variable_loss_scaling_is_loaded():
    def make(scaling):
        return lambda m: optim.SGD(m.parameters(), lr=0.1, loss_scaling=scaling)

    _, _, optimizer = running(make(8.0))
    wrapped, _, other = running(make(2.0))
    other.load_state_dict(optimizer.state_dict())
    assert other.loss_scaling == 8.0
    wrapped(*rows(4))
    assert wrapped._executable.session.hyper["loss_scaling"] == 8.0


def test_a_loss_scaling_that_did_not_change_keeps_its_digits():
    _, _, optimizer = running(lambda m: optim.SGD(m.parameters(), lr=0.1, loss_scaling=0.1))
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.loss_scaling == 0.1


def test_a_constant_loss_scaling_stays():
    _, _, optimizer = running(lambda m: optim.SGD(m.parameters(), lr=0.1, loss_scaling=8.0))
    wrapped, _, other = running(lambda m: optim.SGD(m.parameters(), lr=0.1))
    other.load_state_dict(optimizer.state_dict())
    assert other.loss_scaling == 1.0
    wrapped(*rows(4))


def test_set_state_dict_leaves_the_groups():
    _, _, optimizer = running(adam)
    other = adam(scorer(), lr=0.5)
    other.set_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == 0.5
    assert same(other.get_state_dict()["ipu_state"], optimizer.get_state_dict()["ipu_state"])


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
    state = wrapped._optimizer
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

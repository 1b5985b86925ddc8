"""State that an optimizer has on the host goes to the device and comes back."""

import copy

import pytest
import torch

import poptorch
from helpers.wrapping import options, plain_steps, rows, scorer, trainer, weights
from poptorch import optim

KINDS = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adam": {"lr": 0.1, "weight_decay": 0.1},
    "AdamW": {"lr": 0.1},
    "RMSprop": {"lr": 0.01, "momentum": 0.9, "centered": True},
    "LAMB": {"lr": 0.1},
    "Adadelta": {"lr": 0.5},
    "Adagrad": {"lr_decay": 0.1, "initial_accumulator_value": 0.2},
    "Adamax": {"lr": 0.1},
    "NAdam": {"lr": 0.1, "momentum_decay": 0.1},
    "RAdam": {"lr": 0.1},
    "ASGD": {"t0": 4.0, "lambd": 0.1},
    "Rprop": {},
}
FURTHER = ("Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop")
ALL = [
    (package, name) for package in (torch.optim, optim) for name in KINDS if hasattr(package, name)
]
of_every_kind = pytest.mark.parametrize(
    ("package", "name"), ALL, ids=lambda each: getattr(each, "__name__", each)
)
adam = torch.optim.Adam


def stepped(make, steps=3):
    """A scorer and its optimizer after some steps on the host."""
    model = scorer()
    optimizer = make(model.parameters())
    plain_steps(model, optimizer, batches(range(steps)))
    return model, optimizer


def batches(seeds):
    return [[rows(4, seed=seed)] for seed in seeds]


def pair(make):
    """Two of the same, one for a wrapper and one that goes on in plain PyTorch."""
    return stepped(make), stepped(make)


def train(wrapped, seeds):
    for seed in seeds:
        wrapped(*rows(4, seed=seed))


def assert_equal(model, expected, **tolerance):
    tolerance = tolerance or {"rtol": 0, "atol": 0}
    torch.testing.assert_close(weights(model), weights(expected), **tolerance)


@of_every_kind
def test_training_goes_on_from_steps_on_the_host(package, name):
    (model, optimizer), (plain, theirs) = pair(lambda p: getattr(package, name)(p, **KINDS[name]))
    train(trainer(model, optimizer), (7, 8))
    plain_steps(plain, theirs, batches((7, 8)))
    # The host's step of LAMB computes on other kernels than the interpreter's.
    assert_equal(model, plain, **({"rtol": 0, "atol": 1e-6} if name == "LAMB" else {}))


@pytest.mark.parametrize("when", ["before wrapping", "before the first call", "after it"])
def test_a_loaded_state_is_that_of_the_next_step(when):
    (_, other), (plain, theirs) = pair(lambda p: adam(p, lr=0.05))
    model = scorer()
    optimizer = adam(model.parameters(), lr=0.3)
    saved = copy.deepcopy((plain.state_dict(), other.state_dict()))

    def load(wrapped=model):
        wrapped.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])

    if when == "before wrapping":
        load()
    wrapped = trainer(model, optimizer)
    if when == "after it":
        train(wrapped, (1, 2))
    if when != "before wrapping":
        load(wrapped)
    train(wrapped, (7, 8))
    plain_steps(plain, theirs, batches((7, 8)))
    assert_equal(model, plain)


def test_another_optimizer_brings_its_state_along():
    (model, optimizer), (plain, theirs) = pair(lambda p: adam(p, lr=0.1))
    wrapped = trainer(model, adam(model.parameters(), lr=0.1))
    wrapped.setOptimizer(optimizer)
    train(wrapped, (7, 8))
    plain_steps(plain, theirs, batches((7, 8)))
    assert_equal(model, plain)


def test_setting_the_same_optimizer_again_leaves_the_devices_state():
    (model, optimizer), (plain, theirs) = pair(lambda p: adam(p, lr=0.1))
    wrapped = trainer(model, optimizer)
    for seed, rate in ((7, 0.1), (8, 0.05), (9, 0.02)):
        for each in (optimizer, theirs):
            each.param_groups[0]["lr"] = rate
        wrapped.setOptimizer(optimizer)
        train(wrapped, (seed,))
        plain_steps(plain, theirs, batches((seed,)))
    assert_equal(model, plain)


@pytest.mark.parametrize("end", ["destroy", "del"])
@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad"])
def test_what_the_device_did_comes_back_when_the_wrapper_ends(name, end):
    (model, optimizer), (plain, theirs) = pair(
        lambda p: getattr(torch.optim, name)(p, **KINDS[name])
    )
    wrapped = trainer(model, optimizer)
    train(wrapped, (7,))
    if end == "destroy":
        wrapped.destroy()
    del wrapped
    weights(model)  # fetches them
    assert_goes_on(model, optimizer, plain, theirs)


@pytest.mark.parametrize("name", ["Adam", "RMSprop", *FURTHER])
def test_what_comes_back_is_torchs_state(name):
    (model, optimizer), (plain, theirs) = (
        stepped(lambda p: getattr(torch.optim, name)(p, **KINDS[name]), steps=0) for _ in range(2)
    )
    wrapped = trainer(model, optimizer)
    train(wrapped, range(8))
    wrapped.destroy()
    plain_steps(plain, theirs, batches(range(8)))
    state_dict, expected = (each.state_dict()["state"] for each in (optimizer, theirs))
    assert state_dict.keys() == expected.keys()
    for number, state in expected.items():
        assert state_dict[number].keys() == state.keys()
        for key, value in state.items():
            torch.testing.assert_close(state_dict[number][key], value, rtol=0, atol=0)


def test_another_adagrad_goes_on_with_the_sums_of_the_first():
    model, plain = scorer(), scorer()
    make = torch.optim.Adagrad
    wrapped, theirs = (
        trainer(model, make(model.parameters(), lr=0.1)),
        make(plain.parameters(), 0.1),
    )
    for lr, seed in ((0.1, 1), (0.05, 2)):
        wrapped.setOptimizer(make(model.parameters(), lr=lr))
        train(wrapped, (seed,))
        theirs.param_groups[0]["lr"] = lr
        plain_steps(plain, theirs, batches((seed,)))
    assert_equal(model, plain)


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "NAdam", "Rprop"])
def test_a_state_begins_again_as_it_began(name):
    """Not from zero: all but Adam begin with a sum, a product or a step width."""
    model = scorer()
    optimizer = getattr(torch.optim, name)(model.parameters(), **KINDS[name])
    fresh = {"state": {}, "param_groups": copy.deepcopy(optimizer.state_dict()["param_groups"])}
    wrapped = trainer(model, optimizer)
    train(wrapped, (1, 2))
    plain = scorer()
    plain.load_state_dict(model.state_dict())
    optimizer.load_state_dict(fresh)
    train(wrapped, (3, 4))
    plain_steps(
        plain, getattr(torch.optim, name)(plain.parameters(), **KINDS[name]), batches((3, 4))
    )
    assert_equal(model, plain)


def assert_goes_on(model, optimizer, plain, theirs):
    """On the host, and then in another wrapper."""
    plain_steps(plain, theirs, batches((7, 8)))
    if poptorch._state.module_weights.shared_by(model).wrapped:
        model.destroy()
    plain_steps(model, optimizer, batches((8,)))
    assert_equal(model, plain)
    train(trainer(model, optimizer), (9,))
    plain_steps(plain, theirs, batches((9,)))
    assert_equal(model, plain)


def test_some_parameters_may_have_none():
    def make(p):
        return adam(p, lr=0.1)

    (model, optimizer), (plain, theirs) = pair(make)
    del optimizer.state[model.fc.bias], theirs.state[plain.fc.bias]
    train(trainer(model, optimizer), (7, 8))
    plain_steps(plain, theirs, batches((7, 8)))
    assert_equal(model, plain)


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", *FURTHER])
def test_parameters_without_a_gradient_get_no_state(name):
    (model, optimizer), (plain, theirs) = (_unused(name) for _ in range(2))
    wrapped = trainer(model, optimizer)
    train(wrapped, range(2))
    wrapped.destroy()
    plain_steps(plain, theirs, batches(range(2)))
    state, expected = (each.state_dict()["state"] for each in (optimizer, theirs))
    # Torch's Adagrad makes state when it is constructed, for all parameters.
    assert state.keys() == expected.keys() == {1, 2, *([0] if name == "Adagrad" else [])}


def _unused(name):
    model = scorer()
    model.unused = torch.nn.Parameter(torch.ones(2))
    return model, getattr(torch.optim, name)(model.parameters(), **KINDS[name])


def test_states_of_earlier_releases_count_steps_in_numbers():
    (model, optimizer), (plain, theirs) = pair(lambda p: adam(p, lr=0.1))
    for state in optimizer.state.values():
        state["step"] = int(state["step"])
    train(trainer(model, optimizer), (7,))
    plain_steps(plain, theirs, batches((7,)))
    assert_equal(model, plain)


def test_the_state_is_in_what_is_exported(tmp_path):
    (model, optimizer), (plain, theirs) = pair(lambda p: adam(p, lr=0.1))
    wrapped = trainer(model, optimizer)
    wrapped.compile(*rows(4))
    wrapped.save(tmp_path / "model")
    loaded = poptorch.load(tmp_path / "model")
    train(loaded, (7,))
    plain_steps(plain, theirs, batches((7,)))
    state = torch.cat([value.flatten() for value in loaded.state_dict().values()])
    assert torch.equal(state, weights(plain))


def test_reading_our_own_state_before_the_first_call_loses_nothing():
    (model, optimizer), (plain, theirs) = pair(lambda p: optim.Adam(p, lr=0.1))
    wrapped = trainer(model, optimizer)
    wrapped.compile(*rows(4))
    assert optimizer.state_dict()["ipu_state"]["Step___fc.weight"] == 3
    train(wrapped, (7,))
    plain_steps(plain, theirs, batches((7,)))
    assert_equal(model, plain)


def _drop(state):
    del state["exp_avg"]


def _rename(state):
    state["momentum_buffer"] = state.pop("exp_avg")


def _cut(state):
    state["exp_avg"] = state["exp_avg"][:1]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_drop, r"fc\.weight lacks exp_avg"),
        (_rename, r"fc\.weight has momentum_buffer, which this optimizer does not use"),
        (_cut, r"exp_avg of fc\.weight has shape \[1, 4\], the parameter \[3, 4\]"),
    ],
)
@pytest.mark.parametrize("when", ["wrapping", "setting"])
def test_a_state_that_cannot_be_taken_over_is_refused(damage, words, when):
    model, optimizer = stepped(lambda p: adam(p, lr=0.1))
    damage(optimizer.state[model.fc.weight])
    use = trainer(model).setOptimizer if when == "setting" else wrapping(model)
    with pytest.raises(poptorch.Error, match=f"state of optimizer Adam cannot .*: {words}"):
        use(optimizer)


def wrapping(model):
    return lambda optimizer: poptorch.trainingModel(model, options(), optimizer)

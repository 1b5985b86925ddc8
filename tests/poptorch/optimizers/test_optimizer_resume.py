"""Training resumed from files equals training that was never interrupted, bit for bit."""

import pytest
import torch

from helpers.wrapping import rows, scorer, trainer, weights
from poptorch import optim

HALF = torch.float16
OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, weight_decay=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, loss_scaling=8.0),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "combined": lambda p: optim.SGD(
        p, lr=0.1, momentum=0.9, use_combined_accum=True, velocity_scaling=2.0
    ),
    "adam": lambda p: optim.Adam(p, lr=0.1, max_grad_norm=0.5),
    "adam in half": lambda p: optim.Adam(
        p, lr=0.1, accum_type=HALF, first_order_momentum_accum_type=HALF
    ),
    "adamw": lambda p: optim.AdamW(p, lr=0.1, betas=(0.8, 0.9)),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01),
    "rmsprop with all": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "rmsprop of tensorflow": lambda p: optim.RMSprop(p, lr=0.01, use_tf_variant=True),
    "lamb": lambda p: optim.LAMB(p, lr=0.1, loss_scaling=4.0),
}
SCHEDULES = {
    "plain": ({}, 4),
    "accumulation": ({"gradientAccumulation": 2}, 8),
    "all": ({"gradientAccumulation": 2, "replicationFactor": 2, "deviceIterations": 2}, 16),
}


def _save(path, model, optimizer):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def _resumed(path, make, when, **settings):
    """Fresh objects, other weights, then what the file has."""
    loaded = torch.load(path, weights_only=True)
    model = scorer(5)
    model.load_state_dict(loaded["model"])
    optimizer = make(model.parameters())
    if when == "before wrapping":
        optimizer.load_state_dict(loaded["optimizer"])
    wrapped = trainer(model, optimizer, **settings)
    if when == "before compiling":
        optimizer.load_state_dict(loaded["optimizer"])
    elif when == "after a run":
        wrapped(*rows(2 * 2 * 2 * 2 if settings else 4, seed=77))
        wrapped.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
    return wrapped, model


def _train(wrapped, size, seeds):
    for seed in seeds:
        wrapped(*rows(size, seed=seed))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_resumes(tmp_path, name):
    make = OPTIMIZERS[name]
    model = scorer()
    optimizer = make(model.parameters())
    wrapped = trainer(model, optimizer)
    _train(wrapped, 4, range(3))
    _save(tmp_path / "checkpoint.pt", model, optimizer)
    _train(wrapped, 4, range(3, 6))
    again, resumed = _resumed(tmp_path / "checkpoint.pt", make, "before wrapping")
    _train(again, 4, range(3, 6))
    assert torch.equal(weights(resumed), weights(model))


@pytest.mark.parametrize("when", ["before wrapping", "before compiling", "after a run"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_moment_of_loading_does_not_matter(tmp_path, when, schedule):
    make, (settings, size) = OPTIMIZERS["adam"], SCHEDULES[schedule]
    model = scorer()
    optimizer = make(model.parameters())
    wrapped = trainer(model, optimizer, **settings)
    _train(wrapped, size, range(2))
    _save(tmp_path / "checkpoint.pt", model, optimizer)
    _train(wrapped, size, range(2, 4))
    if when == "after a run" and schedule == "accumulation":
        settings = {**settings, "deviceIterations": 2}  # also another schedule: 2 calls become 1
        again, resumed = _resumed(tmp_path / "checkpoint.pt", make, when, **settings)
        batches = [rows(size, seed=seed) for seed in range(2, 4)]
        again(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
    else:
        again, resumed = _resumed(tmp_path / "checkpoint.pt", make, when, **settings)
        _train(again, size, range(2, 4))
    assert torch.equal(weights(resumed), weights(model))


def test_without_its_state_training_goes_elsewhere(tmp_path):
    """The property above is not true by accident."""
    make = OPTIMIZERS["adam"]
    model = scorer()
    wrapped = trainer(model, make(model.parameters()))
    _train(wrapped, 4, range(3))
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    _train(wrapped, 4, range(3, 5))
    fresh = scorer(5)
    fresh.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    _train(trainer(fresh, make(fresh.parameters())), 4, range(3, 5))
    assert not torch.equal(weights(fresh), weights(model))


def test_a_changed_rate_resumes_too(tmp_path):
    make = OPTIMIZERS["momentum"]
    model = scorer()
    optimizer = make(model.parameters())
    wrapped = trainer(model, optimizer)
    _train(wrapped, 4, [0])
    optimizer.param_groups[0]["lr"] = 0.03
    optimizer.loss_scaling = 16.0
    wrapped.setOptimizer(optimizer)
    _train(wrapped, 4, [1])
    _save(tmp_path / "checkpoint.pt", model, optimizer)
    _train(wrapped, 4, [2])
    again, resumed = _resumed(tmp_path / "checkpoint.pt", make, "after a run")
    _train(again, 4, [2])
    assert torch.equal(weights(resumed), weights(model))


def test_checkpoints_read_without_this_package(tmp_path):
    model = scorer()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    trainer(model, optimizer)(*rows(4))
    state = optimizer.state_dict()
    assert {type(value) for value in state["ipu_state"].values()} == {torch.Tensor}
    assert {value.device.type for value in state["ipu_state"].values()} == {"cpu"}
    assert {type(value) for value in state["ipu_param"].values()} == {torch.Tensor}

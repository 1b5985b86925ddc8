"""Torch's learning-rate schedulers drive a wrapped model as they drive plain PyTorch."""

import pytest
import torch
from torch.optim import lr_scheduler

import poptorch
from helpers.wrapping import options, rows, scorer, weights
from poptorch import optim

SCHEDULERS = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(
        o, max_lr=0.2, total_steps=8, cycle_momentum=bool({"momentum", "betas"} & set(o.defaults))
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=6),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=2),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
}
# Package, class and settings; torch's class of that name goes beside it.
OPTIMIZERS = {
    "torch sgd": (torch.optim, "SGD", {"momentum": 0.9}),
    "sgd": (optim, "SGD", {"momentum": 0.9}),
    "adam": (optim, "Adam", {"betas": (0.9, 0.999)}),
    "rmsprop": (optim, "RMSprop", {"momentum": 0.9}),
    "torch adadelta": (torch.optim, "Adadelta", {}),
    "torch adagrad": (torch.optim, "Adagrad", {"lr_decay": 0.1}),
    "torch asgd": (torch.optim, "ASGD", {"lambd": 0.1}),
}


def _advance(scheduler, loss):
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        scheduler.step(loss)
    else:
        scheduler.step()


@pytest.mark.parametrize("schedule", SCHEDULERS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_scheduler_does_what_it_does_in_torch(schedule, name):
    package, kind, settings = OPTIMIZERS[name]
    model, plain = scorer(), scorer()
    ours = getattr(package, kind)(model.parameters(), lr=0.1, **settings)
    theirs = getattr(torch.optim, kind)(plain.parameters(), lr=0.1, **settings)
    wrapped = poptorch.trainingModel(model, options(), ours)
    ours_scheduler, theirs_scheduler = SCHEDULERS[schedule](ours), SCHEDULERS[schedule](theirs)
    wrapped.setOptimizer(ours)
    for step in range(5):
        batch = rows(4, seed=step)
        loss, _ = wrapped(*batch)
        theirs.zero_grad()
        expected = plain(*batch)[0]
        expected.backward()
        theirs.step()
        assert torch.equal(loss, expected.detach())
        _advance(ours_scheduler, loss)
        _advance(theirs_scheduler, loss)
        wrapped.setOptimizer(ours)
    assert ours.param_groups[0]["lr"] == theirs.param_groups[0]["lr"]
    assert ours.param_groups[0]["lr"] != 0.1
    assert torch.equal(weights(model), weights(plain))


def test_a_scheduler_and_its_optimizer_resume_together():
    def made():
        model = scorer()
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return poptorch.trainingModel(model, options(), optimizer), model, optimizer, scheduler

    def steps(wrapped, optimizer, scheduler, seeds):
        for seed in seeds:
            wrapped(*rows(4, seed=seed))
            scheduler.step()
            wrapped.setOptimizer(optimizer)

    wrapped, model, optimizer, scheduler = made()
    steps(wrapped, optimizer, scheduler, range(2))
    saved = model.state_dict(), optimizer.state_dict(), scheduler.state_dict()
    saved = ({name: value.clone() for name, value in saved[0].items()}, *saved[1:])
    steps(wrapped, optimizer, scheduler, range(2, 5))
    again, resumed, other, other_scheduler = made()
    for target, state in zip((resumed, other, other_scheduler), saved, strict=True):
        target.load_state_dict(state)
    steps(again, other, other_scheduler, range(2, 5))
    assert torch.equal(weights(resumed), weights(model))


@pytest.mark.parametrize("cycle", ["one cycle", "cyclic"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam])
def test_momentum_that_a_scheduler_cycles_must_be_variable(kind, cycle):
    def scheduler(**settings):
        if cycle == "cyclic":
            return lr_scheduler.CyclicLR(optimizer, 0.1, 0.2, step_size_up=4, **settings)
        return lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=8, **settings)

    model = scorer()
    optimizer = kind(model.parameters(), lr=0.1, betas=(0.91, 0.999))
    wrapped = poptorch.trainingModel(model, options(), optimizer)
    wrapped(*rows(4))
    before = optimizer.state_dict()["param_groups"]
    cycling = scheduler()
    cycling.step()
    with pytest.raises(
        poptorch.Error, match=r"constant beta1 of group 0: 0\.91 to 0\..*pass cycle_momentum=False"
    ):
        wrapped.setOptimizer(optimizer)
    optimizer.param_groups[0].update(betas=before[0]["betas"])
    following = scheduler(cycle_momentum=False)
    following.step()
    wrapped.setOptimizer(optimizer)
    wrapped(*rows(4))


def test_other_constants_that_change_are_no_matter_of_schedulers():
    model = scorer()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    wrapped = poptorch.trainingModel(model, options(), optimizer)
    wrapped(*rows(4))
    optimizer.param_groups[0]["eps"] = 1e-4
    with pytest.raises(poptorch.Error, match="constant eps of group 0") as caught:
        wrapped.setOptimizer(optimizer)
    assert "cycle_momentum" not in str(caught.value)

"""Optimizers of torch and of users, and random numbers, in compiled functions."""

import functools
import itertools
import math
import random
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.utils.checkpoint import checkpoint

import abele
from helpers.compiled_functions import Task, batch, compiles, stays_eager


def stepping(wrap, kind, model=None, scheduled=False, **options):
    """A case of a step of an optimizer, and maybe of a scheduler."""
    task = Task(kind, model, **options)
    schedulers = [lr_scheduler.ExponentialLR(task.optimizer, 0.9)] if scheduled else []

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        for each in schedulers:
            each.step()
        return loss

    return lambda i: step(*batch(i)), lambda: (task, schedulers)


KINDS = {
    **{name: {} for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam")},
    **{name: {} for name in ("RAdam", "RMSprop", "Rprop", "SGD")},
    "SGD with momentum": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "RMSprop centered": {"centered": True, "momentum": 0.9},
    "Adam maximized": {"maximize": True, "foreach": True},
    "Adam with amsgrad": {"amsgrad": True, "weight_decay": 0.1},
    "AdamW with amsgrad": {"amsgrad": True, "betas": (0.5, 0.6)},
}


@pytest.mark.parametrize("name", KINDS)
def test_each_optimizer_follows_its_scheduler(name):
    kind, options = getattr(torch.optim, name.split()[0]), KINDS[name]
    compiles(programs=1, calls=4)(lambda wrap: stepping(wrap, kind, None, True, **options))()


REFUSED = {
    "fused": (torch.optim.SGD, {"lr": 0.1, "fused": True}, "capturable, fused or foreach set"),
    "foreach": (torch.optim.NAdam, {"foreach": True}, "capturable, fused or foreach set"),
    "foreach of RAdam": (torch.optim.RAdam, {"foreach": True}, "or foreach set"),
    "differentiable": (torch.optim.SGD, {"differentiable": True}, "has differentiable=True"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_round_otherwise(name):
    kind, options, reason = REFUSED[name]
    stays_eager(match=reason, calls=3)(lambda wrap: stepping(wrap, kind, **options))()


@stays_eager(match=r"updates parameters of torch\.float16", calls=3)
def test_a_model_of_halves(wrap):
    class Half(nn.Linear):
        def forward(self, x):
            return super().forward(x.half()).float()

    return stepping(wrap, torch.optim.SGD, Half(5, 3).half())


def _trained(dtype, wrap=lambda function: function):
    """The weights after some steps of Adam, in float64, and the optimizer's state."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).bfloat16().to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4)
    x, y = (torch.randn(24, size).bfloat16().to(dtype) for size in (16, 4))

    @wrap
    def step():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(6):
        step()
    weights = torch.cat([each.detach().double().flatten() for each in model.parameters()])
    return weights, [part for each in optimizer.state.values() for part in each.values()]


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_model_of_bfloat16_is_as_close_to_float64_as_plain_pytorch(target, monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", target)
    wrap = abele.compile(cache=False, start="wait", strict=True)
    (ours, state), (theirs, expected), (exact, _) = (
        _trained(torch.bfloat16, wrap),
        _trained(torch.bfloat16),
        _trained(torch.float64),
    )
    assert [each.dtype for each in state] == [each.dtype for each in expected]
    assert torch.bfloat16 in {each.dtype for each in state}
    assert (ours - exact).norm() <= 1.1 * (theirs - exact).norm()


@stays_eager(match=r"an embedding with sparse=True; a program's gradients are dense", calls=3)
def test_sparse_gradients(wrap):
    class Words(nn.Embedding):
        def forward(self, x):
            return super().forward(x.abs().long().clamp(max=6)).sum(1)

    return stepping(wrap, torch.optim.SGD, Words(7, 3, sparse=True))


@compiles(programs=1)
def test_a_class_derived_from_an_optimizer_of_torch(wrap):
    class Halving(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for param in group["params"]:
                    param.grad.mul_(0.5)
            return super().step(closure)

    return stepping(wrap, Halving, lr=0.1, momentum=0.9)


@compiles(programs=1)
def test_an_optimizer_of_ones_own(wrap):
    class Momentum(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for param in group["params"]:
                    mean = self.state[param].setdefault("mean", torch.zeros_like(param))
                    param.add_(mean.mul_(0.9).add_(param.grad), alpha=-group["lr"])

    return stepping(wrap, Momentum)


class OwnAdam(Optimizer):
    """Adam as people write it, with a count of Python for each parameter."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for param in group["params"]:
                state = self.state[param]
                if len(state) == 0:
                    state["step"] = 0
                    state["mean"], state["square"] = (torch.zeros_like(param) for _ in range(2))
                mean, square = state["mean"], state["square"]
                state["step"] += 1
                mean.mul_(beta1).add_(param.grad, alpha=1 - beta1)
                square.mul_(beta2).addcmul_(param.grad, param.grad, value=1 - beta2)
                self.update(group, param, mean, square, state["step"])

    def update(self, group, param, mean, square, step):
        root = (square.sqrt() / math.sqrt(1 - group["betas"][1] ** step)).add_(group["eps"])
        param.addcdiv_(mean, root, value=-group["lr"] / (1 - group["betas"][0] ** step))


class OfTensors(OwnAdam):
    def update(self, group, param, mean, square, step):
        mean = mean / (1 - group["betas"][0] ** step)
        root = (square / (1 - group["betas"][1] ** step)).sqrt() + group["eps"]
        param.sub_(group["lr"] * mean / root)
        param.mul_(1 - 0.01 / (step + 1))
        param.add_(mean, alpha=1e-3 / step)


@pytest.mark.parametrize("kind", [OwnAdam, OfTensors])
def test_an_optimizer_that_counts_in_python(kind):
    compiles(programs=1, calls=8)(lambda wrap: stepping(wrap, kind))()


# -- random numbers, clocks and iterators ------------------------------------------


def scaled_by(wrap, scale):
    """A case of a loss that is scaled by a number."""
    task = Task()

    @wrap
    def step(x, y):
        return task.update(task.loss(x, y) * scale())

    return lambda i: step(*batch(i)), lambda: task


def after_a_seed():
    torch.manual_seed(5)
    return torch.rand(())


def draws():
    """Functions that return a number, with the reason that a program could not."""
    python, numpy = random.Random(0), np.random.default_rng(0)
    own, counted = torch.Generator(), itertools.count(1)
    return {
        "of Python": (lambda: random.random(), "of Python's random or of numpy"),
        "of NumPy": (lambda: np.random.rand(), "of Python's random or of numpy"),
        "of a generator of Python": (lambda: python.random(), "python from 'its content'"),
        "of a generator of NumPy": (lambda: numpy.random(), "numpy from 'its content'"),
        "of a generator of torch": (lambda: torch.rand((), generator=own), "of its own"),
        "after a seed": (after_a_seed, "sets torch's seed or stream"),
        "of a clock": (lambda: min(time.time(), 0.5), "reads a clock or the environment"),
        "of a counter": (lambda: next(counted), r"counted, an iterator or cache \(count\)"),
    }


@pytest.mark.parametrize("name", draws())
def test_numbers_that_a_program_would_repeat(name):
    def build(wrap):
        return scaled_by(wrap, draws()[name][0])

    stays_eager(match=draws()[name][1], calls=4)(build)()


@functools.lru_cache
def weights_of(size):
    return torch.arange(1.0, size + 1).reshape(-1, 1)


@compiles(programs=3, calls=8)
def test_a_cache_by_the_size_of_a_batch_that_is_emptied(wrap):
    weights_of.cache_clear()
    task = Task()

    @wrap
    def step(x, y):
        return task.update((task.model(x) * weights_of(len(x))).square().mean())

    def call(index):
        if index == 6:
            weights_of.cache_clear()
        x, y = batch(index)
        return step(x[: 3 if index in (3, 4) else 8], y)

    return call, lambda: task


@stays_eager(match="calls steps_of with arguments that its cache does not have", calls=7)
def test_a_cache_that_grows_with_each_call(wrap):
    @functools.lru_cache
    def steps_of(number):
        return torch.tensor(1.0 / number)

    count = itertools.count(1)
    task = Task()

    @wrap
    def step(x, y, number):
        return task.update(task.loss(x, y) * steps_of(number))

    return lambda i: step(*batch(i), next(count)), lambda: task


def twice(wrap, between):
    """A case of a step of two layers with something between them."""
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3))
    task = Task(model=model)

    @wrap
    def step(x, y):
        return task.update(F.cross_entropy(model[1](between(model[0](x))), y))

    return lambda i: step(*batch(i)), lambda: task


@stays_eager(match=r"random numbers inside torch\.utils\.checkpoint", calls=3)
def test_a_checkpoint_with_dropout(wrap):
    return twice(wrap, lambda x: checkpoint(F.dropout, x, use_reentrant=False))


@compiles(programs=1, calls=3)
def test_a_checkpoint_without_dropout(wrap):
    return twice(wrap, lambda x: checkpoint(torch.tanh, x, use_reentrant=False))


@compiles(programs=1, calls=3)
def test_dropout_of_a_transposed_tensor(wrap):
    return twice(wrap, lambda x: F.dropout(x.t(), 0.5).t())


@compiles(programs=1)
def test_a_layer_is_used_twice_under_autocast(wrap):
    task = Task(model=nn.Linear(5, 5))

    @wrap
    def step(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(task.model(task.model(x)), y)
        return task.update(loss)

    return lambda i: step(*batch(i)), lambda: task


@stays_eager(match="changes an object that is read afterwards")
def test_a_list_outside_has_two_names(wrap):
    task, losses = Task(), []

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        again = losses
        losses.append(loss.item())
        again.append("again")
        return again

    return lambda i: step(*batch(i)), lambda: (task, losses)


@compiles(programs=1)
def test_a_list_inside_has_two_names(wrap):
    task = Task()

    @wrap
    def step(x, y):
        loss = task.update(task.loss(x, y))
        losses = []
        again = losses
        losses.append(loss.item())
        again.append("again")
        return losses

    return lambda i: step(*batch(i)), lambda: task


@stays_eager(match="reads a clock or the environment")
def test_a_clock_under_another_name(wrap):
    seconds = time.perf_counter
    return scaled_by(wrap, lambda: min(seconds(), 0.5))

"""Random training programs through the wrapper: the bits of plain PyTorch, or refused by name.

Optimizers with random arguments and groups, hooks on gradients, lazy state, containers of results,
accumulation, and steps made on the host before. ``ABELE_RANDOM_TRAININGS=2000`` tries that many.
"""

import collections
import copy
import functools
import os
import random
import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from hypothesis import given
from hypothesis import strategies as st

import poptorch
from helpers.properties import examples
from helpers.wrapping import options, rows
from poptorch import optim

COUNT = int(os.environ.get("ABELE_RANDOM_TRAININGS", "6"))
CALLS = 3
Result = collections.namedtuple("Result", "scores loss")
ARGUMENTS = {
    "SGD": {
        "momentum": (0.0, 0.5, 0.9),
        # No dampening: as in PopTorch it acts on the first step too.
        "weight_decay": (0.0, 0.01),
        "maximize": (False, True),
    },
    "Adam": {
        "betas": ((0.9, 0.999), (0.5, 0.9)),
        "eps": (1e-8, 1e-4),
        "weight_decay": (0.0, 0.05),
        "maximize": (False, True),
        "decoupled_weight_decay": (False, True),
        "foreach": (None, False, True),
    },
    "AdamW": {
        "betas": ((0.9, 0.999), (0.5, 0.9)),
        "weight_decay": (0.0, 0.05),
        "maximize": (False, True),
        "foreach": (None, False, True),
    },
    "RMSprop": {
        "alpha": (0.99, 0.5),
        "momentum": (0.0, 0.9),
        "centered": (False, True),
        "weight_decay": (0.0, 0.05),
        "maximize": (False, True),
    },
    "Adadelta": {
        "rho": (0.9, 0.5),
        "eps": (1e-6, 1e-3),
        "weight_decay": (0.0, 0.05),
        "maximize": (False, True),
    },
    "Adagrad": {
        "lr_decay": (0.0, 0.1),
        "eps": (1e-10, 1e-3),
        "weight_decay": (0.0, 0.05),
        "maximize": (False, True),
    },
    "Adamax": {"betas": ((0.9, 0.999), (0.5, 0.9)), "weight_decay": (0.0, 0.05)},
    "NAdam": {
        "betas": ((0.9, 0.999), (0.5, 0.9)),
        "momentum_decay": (4e-3, 0.1),
        "weight_decay": (0.0, 0.05),
        "decoupled_weight_decay": (False, True),
    },
    "RAdam": {
        "betas": ((0.9, 0.999), (0.5, 0.9)),
        "weight_decay": (0.0, 0.05),
        "decoupled_weight_decay": (False, True),
    },
    "ASGD": {"lambd": (1e-4, 0.1), "t0": (1e6, 2.0), "weight_decay": (0.0, 0.05)},
    "Rprop": {"etas": ((0.5, 1.2), (0.3, 1.9)), "step_sizes": ((1e-6, 50), (1e-3, 0.1))},
}
HOOKS = {
    "none": None,
    "half": lambda grad: grad * 0.5,
    "clamp": lambda grad: grad.clamp(-0.01, 0.01),
    "sign": lambda grad: grad.sign() * 0.125,
    "looks": lambda grad: None,
}
RETURNS = {
    "tuple": lambda scores, loss: (scores, loss),
    "list": lambda scores, loss: [scores, loss],
    "dict": lambda scores, loss: {"scores": scores, "loss": loss},
    "named": lambda scores, loss: Result(scores, loss),
    "nested": lambda scores, loss: ({"a": [scores]}, loss),
}
MEMO: dict[int, torch.Tensor] = {}


@functools.lru_cache
def cached(size: int) -> torch.Tensor:
    return torch.linspace(0, 1, size)


class Net(torch.nn.Module):
    """Two layers, a temperature, and lazy state of one kind."""

    def __init__(self, lazy: str, returns: str, norm: bool):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)
        self.temperature = torch.nn.Parameter(torch.tensor(1.5))
        self.norm = torch.nn.BatchNorm1d(5) if norm else torch.nn.Identity()
        self.lazy, self.returns, self.cache = lazy, returns, None

    def positions(self, x: torch.Tensor) -> torch.Tensor:
        if self.lazy == "attribute":
            if self.cache is None:
                self.cache = torch.arange(5.0).cos()
            return self.cache
        if self.lazy == "memo":
            return MEMO.setdefault(x.shape[1], torch.arange(5.0).sin())
        return cached(5) if self.lazy == "lru" else torch.zeros(5)

    def forward(self, x, target):
        hidden = self.norm(torch.tanh(self.first(x) + self.positions(x)))
        scores = self.second(hidden) * self.temperature
        return RETURNS[self.returns](scores, F.mse_loss(scores, target))


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")


def flat(result) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result
    return [tensor for part in parts for tensor in flat(part)]


def optimizer_of(choose: random.Random, model: Net):
    name = choose.choice(sorted(ARGUMENTS))
    package = choose.choice([p for p in (torch.optim, optim) if hasattr(p, name)])
    kind = getattr(package, name)
    accepted = kind.__init__.__code__.co_varnames
    table = {key: values for key, values in ARGUMENTS[name].items() if key in accepted}

    def some() -> dict:
        return {key: choose.choice(table[key]) for key in table if choose.random() < 0.5}

    groups = [
        {"params": list(model.first.parameters()), **some()},
        {"params": [*model.second.parameters(), model.temperature, *model.norm.parameters()]},
    ]
    for group in groups:
        for name in ("foreach", "centered"):  # of the whole optimizer
            group.pop(name, None)
    return kind(groups, lr=choose.choice((0.1, 0.01)), **some())


def step(model, optimizer, parts) -> list[torch.Tensor]:
    optimizer.zero_grad()
    for part in parts:
        result = model(*part)
        flat(result)[-1].backward()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad /= len(parts)  # behind the hooks, which see each micro-batch's gradient
    optimizer.step()
    return [tensor.detach() for tensor in flat(result)]


def trial(seed: int) -> str:
    """Compares one program with plain PyTorch; whether it agreed or was refused."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    cached.cache_clear()
    MEMO.clear()
    net = Net(
        choose.choice(["none", "attribute", "memo", "lru"]),
        choose.choice(sorted(RETURNS)),
        choose.random() < 0.3,
    )
    accumulation, hooks = choose.choice((1, 1, 2)), []
    for name in ("first.weight", "second.bias", "temperature"):
        hooks.append((name, HOOKS[choose.choice(sorted(HOOKS))]))
    state = choose.getstate()
    plain, other = net, copy.deepcopy(net)
    pairs = []
    for model in (plain, other):
        choose.setstate(state)
        pairs.append((model, optimizer_of(choose, model)))
        for name, hook in hooks:
            if hook is not None:
                model.get_parameter(name).register_hook(hook)
    for number in range(choose.choice((0, 0, 2))):  # on the host, before anything is wrapped
        for model, optimizer in pairs:
            step(model, optimizer, [rows(4, seed=100 + number)])
    wrapped = poptorch.trainingModel(other, options(gradientAccumulation=accumulation), pairs[1][1])
    batches = [
        [rows(4, seed=10 * call + part) for part in range(accumulation)] for call in range(CALLS)
    ]
    try:
        results = [flat(wrapped(*map(torch.cat, zip(*parts, strict=True)))) for parts in batches]
    except poptorch.Error as problem:
        if "returns nothing" not in str(problem):
            raise
        return "refused"
    expected = [step(*pairs[0], parts) for parts in batches]
    for result, right in zip(results, expected, strict=True):
        for one, two in zip(result, right, strict=True):
            assert torch.equal(one, two)
    state_of_other = other.state_dict()
    for name, value in plain.state_dict().items():
        if not name.endswith("tracked"):
            assert torch.equal(value, state_of_other[name]), name
    other(*rows(4))  # the module is whole
    return "same"


@examples(COUNT)
@given(seed=st.integers(0, 2**32))
def test_random_trainings_agree_with_plain_pytorch(seed):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drawback")
        trial(seed)


def test_most_random_trainings_mean_something():
    outcomes = [trial(seed) for seed in range(4)]
    assert outcomes.count("same") >= 1, outcomes

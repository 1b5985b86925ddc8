"""Writes of forward into values that autograd has saved; expected are gradients of the formula."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

import poptorch
from helpers.runs import captured, rule_for
from helpers.wrapping import options, sgd

X = torch.linspace(-1, 2, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")


class Model(nn.Module):
    """A dense layer, a function that writes in place, and a loss."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.function = nn.Linear(4, 4), function
        self.register_buffer("scale", torch.tensor(3.0))

    def forward(self, x):
        made = self.function(self, self.fc(x))
        return poptorch.identity_loss((made * made).sum(), "none"), made


def written_slice(model, x):
    y = torch.relu(x)
    y[:, :2].mul_(2)
    return y


def functional_slice(model, x):
    y = torch.relu(x)
    return torch.cat([y[:, :2] * 2, y[:, 2:]], 1)


def used_before_and_after(model, x):
    y = torch.sigmoid(x)
    square = y * y
    y += 1
    return square * y


def counted(model, x):
    y = x * model.scale
    model.scale.add_(1)
    return y


# Written in place, and the same as a formula.
CASES = {
    "relu, dropout": (
        lambda m, x: F.dropout(torch.relu(x), 1.0, True, inplace=True) + x,
        lambda m, x: torch.relu(x) * 0 + x,
    ),
    "sigmoid": (lambda m, x: torch.sigmoid(x).mul_(2), lambda m, x: torch.sigmoid(x) * 2),
    "tanh": (lambda m, x: torch.tanh(x).add_(1), lambda m, x: torch.tanh(x) + 1),
    "relu of relu": (lambda m, x: F.relu(x).neg_().add_(1), lambda m, x: 1 - F.relu(x)),
    "exp, softmax": (
        lambda m, x: x.exp().softmax(-1).mul_(x),
        lambda m, x: x.exp().softmax(-1) * x,
    ),
    "part": (written_slice, functional_slice),
    "factors": (used_before_and_after, lambda m, x: torch.sigmoid(x) ** 2 * (1 + torch.sigmoid(x))),
    "buffer": (counted, lambda m, x: x * m.scale),
}


@pytest.mark.parametrize("name", CASES)
def test_the_program_is_differentiated_as_one_without_writes(name):
    writes, formula = CASES[name]
    model, plain = Model(writes), Model(formula)
    loss, made = poptorch.trainingModel(model, options(), sgd(model))(X)
    expected = plain(X)
    expected[0].backward()
    sgd(plain).step()
    torch.testing.assert_close(loss, expected[0].detach())
    torch.testing.assert_close(made, expected[1].detach())
    torch.testing.assert_close(model.fc.weight, plain.fc.weight)


def test_plain_pytorch_refuses_these_in_known_words():
    model = Model(CASES["sigmoid"][0])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(X)[0].backward()


def test_only_values_that_are_written_to_are_copied():
    def forward(model, x):
        return torch.tanh(torch.sigmoid(torch.tanh(x)).mul_(2))

    model = Model(forward)
    (step,) = captured(model, (X,), None, rule_for(model)).programs
    nodes = step.graph.graph.nodes
    copies = [node for node in nodes if node.target is torch.ops.aten.clone.default]
    assert len(copies) == 1


def test_a_repeated_trace_draws_the_random_numbers_of_one():
    def writes(model, x):
        return torch.sigmoid(x).mul_(random.random() + np.random.rand())

    def formula(model, x):
        return torch.sigmoid(x) * (random.random() + np.random.rand())

    results = []
    for function in (writes, formula):
        random.seed(1)
        np.random.seed(2)
        model = Model(function)
        loss, _ = poptorch.trainingModel(model, options(), sgd(model))(X)
        results.append((loss, random.random(), np.random.rand()))
    assert results[0] == results[1]

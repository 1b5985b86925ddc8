"""A call of a finished program runs little code of Python: each function takes 0.1 us or more."""

import sys

import pytest
import torch
from torch import nn

import abele
import poptorch

X, Y = torch.randn(2, 8), torch.tensor([0, 1])


def calls_of(function, *args):
    names = []
    sys.setprofile(lambda frame, kind, _: names.append(frame.f_code) if kind == "call" else None)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return [code.co_name for code in names]


@pytest.fixture
def network(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "null")
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(20)))


def test_a_wrapped_model_calls_few_functions(network):
    wrapped = poptorch.inferenceModel(network.eval())
    wrapped(X)
    assert len(calls_of(wrapped, X)) <= 16


def test_a_compiled_function_calls_few_functions_however_deep_the_network(network):
    predict = abele.compile(start="wait", strict=True)(lambda x: network.requires_grad_(False)(x))
    optimizer = torch.optim.Adam(network.parameters())

    @abele.compile(start="wait", strict=True)
    def train(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for function, args, most in ((train, (X, Y), 45), (predict, (X,), 37)):
        for _ in range(3):
            function(*args)
        assert len(names := calls_of(function, *args)) <= most, names

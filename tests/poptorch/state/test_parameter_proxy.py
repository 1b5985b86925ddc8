"""A parameter read through a wrapper is a proxy that behaves like the parameter."""

import copy

import pytest
import torch

from helpers.wrapping import Calls, trainer
from poptorch._state.module_weights import ParameterProxy

VALUE = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
OTHER = torch.tensor([[5.0, 6.0], [7.0, -8.0]])


@pytest.fixture
def proxy():
    model = Calls(lambda self, x: x)
    model.weight = torch.nn.Parameter(VALUE.clone())
    return trainer(model).weight


USES = {
    "operator": lambda w: w + OTHER,
    "reflected operator": lambda w: OTHER - w,
    "number on the left": lambda w: 2 / w,
    "matrix product": lambda w: OTHER @ w,
    "two of them": lambda w: w * w,
    "torch function": lambda w: torch.add(w, w),
    "in a list": lambda w: torch.stack([w, OTHER]),
    "as keyword": lambda w: torch.mul(input=w, other=w),
    "method": lambda w: w.exp(),
    "index": lambda w: w[0],
    "iteration": lambda w: torch.stack(list(w)),
    "comparison": lambda w: w == VALUE,
    "negative": lambda w: -w,
    "detached": lambda w: w.detach(),
    "data": lambda w: w.data,
    "module function": lambda w: torch.nn.functional.linear(OTHER, w),
    "argument of a method": lambda w: OTHER.matmul(w),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_it_computes_like_the_parameter(proxy, use):
    result = use(proxy)
    assert not isinstance(result, ParameterProxy)
    assert torch.equal(result, use(torch.nn.Parameter(VALUE)))


def test_it_is_no_parameter_and_has_its_attributes(proxy):
    assert type(proxy) is ParameterProxy
    assert not isinstance(proxy, torch.nn.Parameter)
    assert (proxy.shape, proxy.dtype, len(proxy)) == ((2, 2), torch.float32, 2)
    assert {"replicaGrouping", "numel"} <= set(dir(proxy))
    assert float(proxy[0, 1].detach()) == -2.0
    assert "-2." in repr(proxy)
    assert torch.is_tensor(copy.deepcopy(proxy))
    with pytest.raises(AttributeError, match="absent"):
        _ = proxy.absent


def test_writing_reaches_the_parameter(proxy):
    parameter = proxy._executor.model.weight
    proxy.requires_grad = False
    proxy[0, 0] = 9.0
    proxy += 1
    proxy.mul_(2.0)
    assert parameter.tolist() == [[20.0, -2.0], [8.0, 10.0]]
    assert not parameter.requires_grad
    proxy.data = OTHER
    assert torch.equal(parameter, OTHER)
    assert hash(proxy) == hash(parameter)


def test_trained_values_are_seen_through_it():
    model = Calls(lambda self, x: torch.nn.functional.mse_loss(x * self.weight, x))
    wrapped = trainer(model, torch.optim.SGD(model.parameters(), lr=0.25))
    weight = wrapped.weight
    wrapped(torch.ones(2))
    assert weight.item() == 1.5
    assert torch.equal(weight, torch.tensor(1.5))

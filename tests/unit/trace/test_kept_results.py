"""Results kept by an earlier trace are those that torch gives; what is not certain is not kept."""

import pytest
import torch

from abele import _torch
from abele.trace import fake_results
from abele.trace.fake_results import results_of

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch):
    monkeypatch.setattr(fake_results, "_kept", {})


def fakes_of(mode, value):
    """Arguments with tensors without data."""
    if isinstance(value, list):
        return [fakes_of(mode, each) for each in value]
    return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value


def facts(results):
    """Everything that a later operator may ask of results."""
    if not isinstance(results, tuple | list):
        results = (results,)
    return [
        each
        if each is None
        else (each.dtype, each.shape, each.stride(), each.storage_offset(), each.device.type)
        for each in results
    ]


def call(function, *args):
    """The results of an operator in a mode of their own."""
    mode = _torch.static_fakes()
    with mode:
        results = results_of(function, fakes_of(mode, list(args)))
    for each in results if isinstance(results, tuple | list) else (results,):
        assert each is None or each.fake_mode is mode
    return results


X = torch.randn(4, 6)
IMAGES = torch.randn(2, 3, 8, 8)
KERNEL = torch.randn(5, 3, 3, 3)
CONVOLUTION = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)

CALLS = {
    "one result": (aten.relu.default, X),
    "transposed": (aten.add.Tensor, X.t(), X.t()),
    "another type": (aten.gt.Scalar, X, 0),
    "several results": (aten.native_layer_norm.default, X, [6], torch.rand(6), torch.rand(6), 1e-5),
    "some results": (
        *(aten.convolution_backward.default, torch.randn(2, 5, 6, 6), IMAGES, KERNEL, [5]),
        *(*CONVOLUTION, [False, True, False]),
    ),
    "a list of tensors": (aten.cat.default, [X, X], 1),
    "channels last": (
        *(aten.convolution.default, IMAGES.to(memory_format=torch.channels_last), KERNEL, None),
        *CONVOLUTION,
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_second_time_results_are_those_of_the_first(name, monkeypatch):
    function, *args = CALLS[name]
    mode = _torch.static_fakes()
    with mode:
        expected = facts(function(*fakes_of(mode, args)))
    assert facts(call(function, *args)) == expected
    assert len(fake_results._kept) == 1
    monkeypatch.setattr(fake_results, "stated_results", None)  # nobody asks torch again
    assert facts(call(function, *args)) == expected


OTHERS = {
    "a shape": (aten.relu.default, [X], [X[:3]]),
    "an order": (aten.relu.default, [X], [torch.randn(6, 4).t()]),
    "a type": (aten.relu.default, [X], [X.double()]),
    "a number": (aten.sum.dim_IntList, [X, [0]], [X, [1]]),
    "a kind of number": (aten.add.Scalar, [X.int(), 1], [X.int(), 1.0]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_decides_the_results_tells_calls_apart(name):
    function, first, second = OTHERS[name]
    assert facts(call(function, *first)) != facts(call(function, *second))
    assert len(fake_results._kept) == 2


def test_the_default_type_tells_calls_apart():
    args = (aten.div.Tensor, torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.int64))
    assert call(*args).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert call(*args).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_every_call_makes_tensors_of_its_own():
    first, second = call(aten.relu.default, X), call(aten.relu.default, X)
    assert _torch.memory_of(first) != _torch.memory_of(second)


NOT_KEPT = {
    "a view": (aten.t.default, X),
    "a write": (aten.relu_.default, X),
    "a stated result": (aten.leaky_relu_backward.default, X, X, 0.1, False),
    "complex numbers": (aten.mul.Tensor, X.to(torch.complex64), X.to(torch.complex64)),
    "no tensor": (aten.zeros.default, [3]),
}


@pytest.mark.parametrize("name", NOT_KEPT)
def test_what_is_not_certain_is_left_to_torch(name):
    function, *args = NOT_KEPT[name]
    call(function, *args)
    assert fake_results._kept == {}


def test_an_error_is_raised_each_time():
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broadcast"):
            call(aten.add.Tensor, X, X[:, :5])
    assert fake_results._kept == {}


def test_all_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(fake_results, "MOST", 2)
    for size in range(1, 6):
        call(aten.relu.default, torch.randn(size))
    assert len(fake_results._kept) == 1

"""Calls unlike the signature or unlike the first call are errors, never a recompilation."""

import pytest
import torch

import poptorch
from helpers.wrapping import options, rows, scorer, trainer

X = torch.ones(4, 3)


class Flexible(torch.nn.Module):
    def forward(self, x, other, scale=2.0):
        del other
        return x * scale


@pytest.mark.parametrize(
    ("args", "kwargs", "kind", "words"),
    [
        ((X, X, 1.0, X), {}, AssertionError, "Too many arguments"),
        ((X, X), {"nonsense": X}, AssertionError, "'nonsense' is not a valid parameter"),
        ((X, X), {"x": X}, AssertionError, "'x' was passed more than once"),
        ((X,), {}, poptorch.Error, "Mandatory parameter other missing"),
    ],
)
def test_calls_that_python_would_refuse(args, kwargs, kind, words):
    with pytest.raises(kind, match=words):
        poptorch.inferenceModel(Flexible(), options())(*args, **kwargs)


@pytest.mark.parametrize(
    ("first", "later", "words"),
    [
        pytest.param(X, X[:2], "Shape mismatch for x", id="shape"),
        pytest.param(X, X.half(), "Data type mismatch for x.*float32.*float16", id="dtype"),
        pytest.param(X, 3, "Type mismatch for x.*torch.Tensor.*int", id="no tensor any more"),
        pytest.param(X, None, "Type mismatch for x.*NoneType", id="None"),
        pytest.param((X, X), [X, X], "Type mismatch for x.*tuple.*list", id="list for tuple"),
        pytest.param((X, X), (X,), "Length mismatch for x", id="length"),
        pytest.param((X, 2), (X, 3), r"Value mismatch for x\[1\].*2.*3", id="constant"),
        pytest.param((X, 1), (X, True), r"Type mismatch for x\[1\].*int.*bool", id="bool"),
        pytest.param([(X, X)], [(X, X[:1])], r"Shape mismatch for x\[0\]\[1\]", id="nested"),
        pytest.param({"a": X}, {"a": X[:1]}, r"Shape mismatch for x\[a\]", id="in a dict"),
        pytest.param({"a": X, "b": X}, {"a": X}, "Missing arguments: b", id="missing key"),
        pytest.param({"a": X}, {"a": X, "z": X}, "Unexpected arguments: z", id="further key"),
    ],
)
def test_later_calls_must_be_like_the_first(first, later, words):
    wrapped = poptorch.inferenceModel(Returned(), options())
    wrapped(first)
    with pytest.raises(poptorch.Error, match=words) as caught:
        wrapped(later)
    assert "Create a new wrapper, or call destroy()" in str(caught.value)


class Returned(torch.nn.Module):
    def forward(self, x, *more, **named):
        return x, more, named


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((X, X), {"a": X}, "Number of positional arguments mismatch: expected 1, found 2"),
        ((X,), {"b": X}, r"Missing arguments: a\. Unexpected arguments: b"),
        ((X,), {}, "Keys mismatch for keyword arguments"),
        ((X,), {"a": X[:1]}, "Shape mismatch for a"),
    ],
)
def test_later_calls_need_the_same_number_and_names(args, kwargs, words):
    wrapped = poptorch.inferenceModel(Returned(), options())
    wrapped(X, a=X)
    with pytest.raises(poptorch.Error, match=words):
        wrapped(*args, **kwargs)


def test_a_refused_call_changes_nothing():
    model = scorer()
    wrapped = trainer(model)
    with pytest.raises(AssertionError):
        wrapped(X, X, X)
    wrapped(*rows(4))
    trained = model.fc.weight.clone()
    with pytest.raises(poptorch.Error, match="Shape mismatch"):
        wrapped(*rows(2))
    assert torch.equal(model.fc.weight, trained)

"""Calls unlike the signature or unlike the first call are errors, never a recompilation."""

import pytest
import torch

import poptorch
from helpers.wrapping import options, rows, scorer, trainer

X = torch.ones(4, 3)


@pytest.mark.parametrize(
    ("first", "later", "words"),
    [
        pytest.param(X, 3, "Type mismatch for x.*torch.Tensor.*int", id="no tensor any more"),
        pytest.param(X, None, "Type mismatch for x.*NoneType", id="None"),
        pytest.param((X, X), [X, X], "Type mismatch for x.*tuple.*list", id="list for tuple"),
        pytest.param((X, 1), (X, True), r"Type mismatch for x\[1\].*int.*bool", id="bool"),
        pytest.param([(X, X)], [(X, X[:1])], r"Shape mismatch for x\[0\]\[1\]", id="nested"),
        pytest.param({"a": X}, {"a": X[:1]}, r"Shape mismatch for x\[a\]", id="in a dict"),
        pytest.param({"a": X, "b": X}, {"a": X}, "Missing arguments: b", id="missing key"),
        pytest.param({"a": X}, {"a": X, "z": X}, "Unexpected arguments: z", id="further key"),
    ],
)
def test_nested_arguments_must_be_like_those_of_the_first_call(first, later, words):
    wrapped = poptorch.inferenceModel(Returned(), options())
    wrapped(first)
    with pytest.raises(poptorch.Error, match=words) as caught:
        wrapped(later)
    assert "Create a new wrapper, or call destroy()" in str(caught.value)


class Returned(torch.nn.Module):
    def forward(self, x, *more, **named):
        return x, more, named


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

"""Copies and pickles of wrapped models, as opposed to those of the user's module."""

import copy
import pickle

import pytest
import torch

import poptorch
from helpers.wrapping import options, rows, running, scorer, sgd, weights

COPIES = [copy.deepcopy, lambda wrapped: pickle.loads(pickle.dumps(wrapped))]  # noqa: S301


@pytest.mark.parametrize("duplicate", COPIES, ids=["deep copy", "pickle"])
@pytest.mark.parametrize(
    "optimizer_of",
    [
        sgd,
        lambda m: poptorch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
        lambda m: poptorch.optim.Adam(m.parameters(), lr=0.1),
    ],
    ids=["torch SGD", "momentum", "Adam"],
)
def test_a_copied_wrapper_goes_on_by_itself(duplicate, optimizer_of):
    wrapped, model, _ = running(optimizer_of)
    other = duplicate(wrapped)
    wrapped(*rows(4))
    expected = weights(model).clone()
    assert not torch.equal(weights(other.model), expected)
    other(*rows(4))
    assert torch.equal(weights(other.model), expected)
    assert torch.equal(other.fc.weight, model.fc.weight)
    other(*rows(4))
    assert torch.equal(weights(model), expected)


@pytest.mark.parametrize("duplicate", COPIES, ids=["deep copy", "pickle"])
def test_a_copied_inference_wrapper_has_the_weights_of_that_moment(duplicate):
    wrapped, model, _ = running(sgd)
    predict = poptorch.inferenceModel(model, options())
    other = duplicate(predict)
    expected = predict(*rows(4))[1]
    wrapped(*rows(4))
    assert torch.equal(other(*rows(4))[1], expected)
    assert not torch.equal(predict(*rows(4))[1], expected)


def test_a_shallow_copy_is_the_same_wrapper():
    predict = poptorch.inferenceModel(scorer(), options())
    predict(*rows(4))
    assert copy.copy(predict).isCompiled()
    assert copy.copy(predict).model is predict.model

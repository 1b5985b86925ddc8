"""What a training program does not do although its source looks so is said once, with the line."""

import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

import poptorch
from helpers.wrapping import options, rows, sgd, trainer

X, TARGET = rows(4)


class Trained(nn.Module):
    """A layer, and a function of the layer, its scores and the target that is forward's end."""

    def __init__(self, end):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.end = end

    def forward(self, x, target):
        return self.end(self.fc, self.fc(x), target)


def trained(end):
    model = Trained(end)
    poptorch.trainingModel(model, options(), sgd(model))(X, TARGET)


class Weighted(Trained):
    def forward(self, x, target):
        loss = F.mse_loss(self.fc(x), target)
        return x, 100 * loss + self.fc.weight.pow(2).sum()


class Beside(Trained):
    def forward(self, x, target):
        loss = (self.fc(x) - target).pow(2).mean()
        return loss, F.l1_loss(self.fc(x), target)


TWO_LINES = {
    Weighted: r"follows mse_loss at .*test_traps.py:35 alone, .* makes of it at .*test_traps.py:36",
    Beside: r"follows l1_loss at .*test_traps.py:42 alone, .* beside it at .*test_traps.py:41",
}


@pytest.mark.parametrize(("kind", "words"), TWO_LINES.items())
def test_both_lines_are_named_once(kind, words):
    model = kind(None)
    wrapped = poptorch.trainingModel(model, options(), sgd(model))
    with pytest.warns(UserWarning, match=words) as told:
        wrapped(X, TARGET)
    wrapped(X, TARGET)
    assert [each.filename for each in told] == [__file__]


TRAPS = {
    "mean of a loss without reduction": (
        lambda fc, y, t: F.mse_loss(y, t, reduction="none").mean(), "Training follows mse_loss"),
    "multiple": (lambda fc, y, t: 3 * F.mse_loss(y, t), "Training follows mse_loss"),
    "sum beside the loss": (
        lambda fc, y, t: ((m := F.mse_loss(y, t)), m + fc.bias.sum()), "Training follows mse_loss"),
    "detached scores": (
        lambda fc, y, t: F.mse_loss(y.detach(), t), r"Training changes nothing: no gr.* mse_loss"),
    "detached and marked": (
        lambda fc, y, t: poptorch.identity_loss(y.detach(), "sum"), "Training changes nothing"),
}  # fmt: skip


@pytest.mark.parametrize(("end", "words"), TRAPS.values(), ids=TRAPS)
def test_a_value_that_is_not_trained_is_named(end, words):
    with pytest.warns(UserWarning, match=words) as told:
        trained(end)
    assert len(told) == 1


QUIET = {
    "the loss": lambda fc, y, t: (F.mse_loss(y, t), y),
    "its exponential beside it": lambda fc, y, t: ((m := F.mse_loss(y, t)), m.exp()),
    "detached": lambda fc, y, t: (F.mse_loss(y, t), fc.weight.detach().norm()),
    "detached sum": lambda fc, y, t: 2 * F.mse_loss(y, t).detach() + fc.bias.sum().detach(),
    "marked": lambda fc, y, t: poptorch.identity_loss(9 * F.mse_loss(y, t) + fc.bias.sum(), "sum"),
    "parts of a marked one": lambda fc, y, t: (
        (m := F.mse_loss(y, t)), poptorch.identity_loss(m + fc.bias.sum(), "sum"), m),
    "a part of the loss": lambda fc, y, t: F.l1_loss(F.mse_loss(y, t), torch.zeros(())),
    "accuracy": lambda fc, y, t: (F.mse_loss(y, t), (y.argmax(1) == 0).float().mean()),
    "scores": lambda fc, y, t: (F.mse_loss(y, t), y, y.softmax(1)),
    "a view": lambda fc, y, t: F.mse_loss(y, t).reshape(1),
}  # fmt: skip


@pytest.mark.parametrize("end", QUIET.values(), ids=QUIET)
def test_what_is_trained_or_only_looked_at_is_not_remarked_on(end):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(end)


class Modal(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Dropout(0.5)
        self.scale = 1.0

    def forward(self, x):
        return self.inner(x) * self.scale + float(self.training)


class Dropping(nn.Module):
    """Reads no mode itself; its part does."""

    def __init__(self, probability=0.5):
        super().__init__()
        self.fc, self.drop = nn.Linear(4, 3), nn.Dropout(probability)

    def forward(self, x, target):
        return F.mse_loss(self.drop(self.fc(x)), target)


def test_a_training_wrapper_whose_parts_went_to_evaluation_mode_says_so_once():
    model = Dropping()
    wrapped = trainer(model)
    poptorch.inferenceModel(model.eval(), options())
    with pytest.warns(UserWarning, match=r"Dropping\.eval\(\) was called.*: drop compute in eval"):
        wrapped(*rows(4))
    wrapped(*rows(4))


def test_an_inference_wrapper_whose_parts_went_to_training_mode_says_so():
    model = Dropping().eval()
    wrapped = poptorch.inferenceModel(model, options())
    model.train()
    with pytest.warns(UserWarning, match=r"Dropping\.train\(\) was called.*Call eval\(\)"):
        wrapped(*rows(4))


@pytest.mark.parametrize("probability", [0.0, 0.5])
def test_a_mode_that_suits_the_wrapper_or_changes_nothing_is_not_mentioned(probability):
    model = Dropping(probability).eval()
    wrapped = trainer(model)
    model.train()
    if not probability:
        model.eval()
    wrapped(*rows(4))


def test_changes_between_wrapping_and_the_first_call_are_named():
    model = Modal()
    wrapped = poptorch.inferenceModel(model, options())
    model.eval()
    model.scale = 2.0
    words = r"Modal was changed after it was wrapped.*training, scale \(model\.eval\(\) has reached"
    with pytest.warns(UserWarning, match=words):
        result = wrapped(torch.ones(2))
    assert torch.equal(result, torch.full((2,), 2.0))
    wrapped(torch.ones(2))  # said once
    again = poptorch.inferenceModel(model, options())
    assert torch.equal(again(torch.ones(2)), torch.full((2,), 2.0))


def test_a_first_call_under_autocast_is_named():
    wrapped = poptorch.inferenceModel(nn.Linear(4, 3), options())
    with (
        torch.autocast("cpu"),
        pytest.warns(UserWarning, match=r"compiled under torch\.autocast for cpu.*bfloat16"),
    ):
        assert wrapped(X).dtype == torch.bfloat16
    assert wrapped(X).dtype == torch.bfloat16


class Running(nn.Module):
    """Keeps a sum in a plain attribute, and what it saw last."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Tanh())
        self.inner.total = torch.zeros(2)
        self.inner.last = torch.zeros(2)

    def forward(self, x):
        self.inner.last = self.inner(x)
        self.inner.total = self.inner.total + x
        return self.inner.total * 2


def test_state_in_a_plain_attribute_is_named_with_its_line():
    model = Running()
    wrapped = poptorch.inferenceModel(model, options())
    with pytest.warns(UserWarning, match=r"new value of Sequential\.total from .*:1\d\d\.") as told:
        first = wrapped(torch.ones(2))
    assert len(told) == 1
    assert torch.equal(first, wrapped(torch.ones(2)))
    assert torch.equal(model.inner.total, torch.zeros(2))

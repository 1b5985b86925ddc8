"""Memory that is shared or seen through views: nothing may change behind the user's back."""

import pytest
import torch
from torch import nn

import poptorch
from helpers.wrapping import options, sgd


@pytest.fixture(autouse=True)
def on_reference(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")


ONES = torch.ones(2, 2)


class Lambda(nn.Module):
    """A module made of a function of itself and its inputs."""

    def __init__(self, function, **state):
        super().__init__()
        self.function = function
        for name, value in state.items():
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def run(function, *inputs, **state):
    return poptorch.inferenceModel(Lambda(function, **state), options())(*inputs)


def test_a_piece_of_an_input_is_the_callers_own():
    x = torch.zeros(4)
    piece = run(lambda self, x: x.split(2)[0], x)
    x.fill_(7.0)
    torch.testing.assert_close(piece, torch.zeros(2))


def test_a_piece_of_a_weight_is_a_result_and_no_window():
    def forward(self, x):
        return self.w.chunk(2)[0], poptorch.identity_loss((self.w * x).sum(), "none")

    model = Lambda(forward, w=nn.Parameter(torch.zeros(4)))
    wrapped = poptorch.trainingModel(model, options(), sgd(model, lr=1.0))
    piece, _ = wrapped(torch.ones(4))
    # As in eager, where the piece is a view of the weight that the optimizer has changed ...
    torch.testing.assert_close(piece, torch.full((2,), -1.0))
    wrapped(torch.ones(4))
    # ... but later steps do not reach into results.
    torch.testing.assert_close(piece, torch.full((2,), -1.0))


def test_a_buffer_copied_from_another_keeps_the_old_value():
    def forward(self, x):
        self.previous.copy_(self.current)
        self.current.add_(1)
        return x + self.previous

    state = {"current": torch.zeros(1), "previous": torch.full((1,), 9.0)}
    model = Lambda(forward, **state)
    wrapped = poptorch.inferenceModel(model, options())
    results = [wrapped(torch.zeros(1)).item() for _ in range(3)]
    assert results == [0.0, 1.0, 2.0]
    wrapped.copyWeightsToHost()
    assert (model.current.item(), model.previous.item()) == (3.0, 2.0)


def test_one_tensor_in_two_places_may_not_be_written():
    x = torch.zeros(2)
    with pytest.raises(poptorch.Error, match="shares its memory with another input"):
        run(lambda self, a, b: (a.add_(1), a + b)[1], x, x)


def test_different_parameters_in_one_memory_are_refused():
    first = nn.Parameter(torch.zeros(2))
    second = nn.Parameter(torch.zeros(2))
    second.data = first.data
    with pytest.raises(poptorch.Error, match="first and second share their memory"):
        run(lambda self, x: x + self.first + self.second, torch.ones(2), first=first, second=second)


def test_two_wrappers_may_not_train_one_tensor():
    shared = nn.Parameter(torch.zeros(2))
    loss = lambda self, x: poptorch.identity_loss((self.w * x).sum(), "none")  # noqa: E731
    one, other = Lambda(loss, w=shared), Lambda(loss, w=shared)
    first = poptorch.trainingModel(one, options(), sgd(one))
    with pytest.raises(poptorch.Error, match="shares a parameter or buffer with another model"):
        poptorch.trainingModel(other, options(), sgd(other))
    assert first.model is one


def test_a_tensor_as_default_argument_works_in_every_call():
    class Masked(nn.Module):
        def forward(self, x, mask=ONES):
            return x * mask

    wrapped = poptorch.inferenceModel(Masked(), options())
    for _ in range(2):
        torch.testing.assert_close(wrapped(torch.ones(2, 2)), torch.ones(2, 2))

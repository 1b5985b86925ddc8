"""Slices at positions that are tensors, against Python's own slices."""

import pytest
import torch
from torch import nn

import poptorch
from helpers.wrapping import inference, rows, trains_like_eager

X = torch.arange(40.0).reshape(5, 8)
TYPES = [torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("dim", "size", "step"), [(0, 3, 1), (1, 5, 2), (-1, 4, 3), (-2, 2, 1)])
def test_a_slice_is_pythons(dtype, dim, size, step):
    def forward(x, start):
        return poptorch.dynamic_slice(x, dim, start, size, step)

    wrapped = inference(forward)
    for start in (0, 1, 2):
        index = [slice(None)] * 2
        index[dim] = slice(start, start + size, step)
        for run in (wrapped, forward):
            output = run(X, torch.tensor(start, dtype=dtype))
            torch.testing.assert_close(output, X[tuple(index)], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", TYPES)
def test_an_update_replaces_a_slice_in_a_copy(dtype):
    src = -torch.ones(5, 3)

    def forward(x, start):
        return poptorch.dynamic_update(x, src, 1, start, 3)

    wrapped = inference(forward)
    for start in (0, 5):
        expected = X.clone()
        expected[:, start : start + 3] = src
        for run in (wrapped, forward):
            output = run(X, torch.tensor([start], dtype=dtype))
            torch.testing.assert_close(output, expected, rtol=0, atol=0)


def test_starts_out_of_range_compile_and_move_inside():
    def forward(x, start):
        part = poptorch.dynamic_slice(x, 0, start, 2, 1)
        return part, poptorch.dynamic_update(x, part * 0, 0, start, 2)

    wrapped = inference(forward)
    wrapped.compile(X, torch.tensor(100))
    for start, inside in ((100, 3), (-7, 0), (4, 3)):
        zeroed = X.clone()
        zeroed[inside : inside + 2] = 0
        for run in (wrapped, forward):
            part, updated = run(X, torch.tensor(start))
            torch.testing.assert_close(part, X[inside : inside + 2], rtol=0, atol=0)
            torch.testing.assert_close(updated, zeroed, rtol=0, atol=0)


class Sliced(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(4, 3), function

    def forward(self, x, target, start):
        return nn.functional.mse_loss(self.function(self.fc(x), start), target)


DIFFERENTIABLE = {
    "slice": lambda y, i: poptorch.dynamic_slice(y, 0, i, 2, 1).repeat(2, 1),
    "update of the input": lambda y, i: poptorch.dynamic_update(y, y[:2].detach(), 0, i, 2),
    "update by the source": lambda y, i: poptorch.dynamic_update(y.detach(), y[:2], 0, i, 2),
}


@pytest.mark.parametrize("function", DIFFERENTIABLE.values(), ids=DIFFERENTIABLE)
def test_gradients_pass_through(function):
    torch.manual_seed(0)
    batches = [(*rows(4), torch.tensor(start)) for start in (0, 2, 1)]
    trains_like_eager(Sliced(function), batches)


ONE = torch.tensor(1)
BAD = [
    (lambda: poptorch.dynamic_slice(X, 0, 1, 2, 1), "start as a tensor, found int"),
    (lambda: poptorch.dynamic_slice(3, 0, ONE, 2, 1), "needs tensor as a tensor, found int"),
    (lambda: poptorch.dynamic_slice(X, ONE, ONE, 2, 1), "dim as an int, found Tensor"),
    (lambda: poptorch.dynamic_slice(X, 0, ONE, ONE, 1), "size as an int, found Tensor"),
    (lambda: poptorch.dynamic_slice(X, 0, ONE, 2, 1.0), "step as an int, found float"),
    (lambda: poptorch.dynamic_slice(X, 0, X[0, 0], 2, 1), r"found \[\] of torch.float32"),
    (lambda: poptorch.dynamic_slice(X, 0, torch.ones(2).int(), 2, 1), r"found \[2\] of torch"),
    (lambda: poptorch.dynamic_slice(X, 2, ONE, 2, 1), "on dimension 2 of a tensor of rank 2"),
    (lambda: poptorch.dynamic_slice(X, 0, ONE, 6, 1), "size from 1 to 5, .* found size 6"),
    (lambda: poptorch.dynamic_slice(X, 0, ONE, 2, 0), "step of at least 1, found .* step 0"),
    (lambda: poptorch.dynamic_update(X, 3, 0, ONE, 2), "src as a tensor, found int"),
    (
        lambda: poptorch.dynamic_update(X, X[:2].int(), 0, ONE, 2),
        "same dtype, found input of torch.float32 and src of torch.int32",
    ),
    (
        lambda: poptorch.dynamic_update(X, X[0], 0, ONE, 2),
        "same rank, found input of rank 2 and src of rank 1",
    ),
    (
        lambda: poptorch.dynamic_update(X, X[:3], 0, ONE, 2),
        r"src of shape \[2, 8\], found \[3, 8\]",
    ),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(poptorch.Error, match=message):
        call()


# -- Python's notation ---------------------------------------------------------------------

NOTATIONS = {
    "an offset": lambda x, i: x[i : i + 2],
    "both offset": lambda x, i: x[i - 1 : i + 2],
    "a dimension": lambda x, i: x[:, i : i + 3],
    "behind an ellipsis": lambda x, i: x[..., i : i + 2],
    "before an ellipsis": lambda x, i: x[i : i + 2, ...],
    "beside a number": lambda x, i: x[2, i : i + 2],
    "before a number": lambda x, i: x[i : i + 2, 2],
    "a new dimension": lambda x, i: x[None, i : i + 2],
    "a step": lambda x, i: x[:, i : i + 5 : 2],
    "computed twice": lambda x, i: x[:, i * 2 : i * 2 + 2],
    "a number": lambda x, i: x[i],
    "a number behind a slice": lambda x, i: x[1:3, i],
    "a number behind an ellipsis": lambda x, i: x[..., i],
    "a number before an ellipsis": lambda x, i: x[i, ...],
    "a number among others": lambda x, i: x[None, 2, None, i],
    "a number from the end": lambda x, i: x[i - 4, 1:2],
    "a copy": lambda x, i: x[i.clone() : i + 1],
}


@pytest.mark.parametrize("forward", NOTATIONS.values(), ids=NOTATIONS)
def test_slices_a_constant_apart_are_pythons(forward):
    wrapped = inference(forward)
    for start in (1, 2, 3):
        output = wrapped(X, torch.tensor(start))
        torch.testing.assert_close(output, forward(X, torch.tensor(start)), rtol=0, atol=0)


def test_a_slice_can_be_assigned():
    def forward(x, i):
        y = x.clone()
        y[i : i + 2] = -1
        y[:, i + 1 : i + 3] *= 2
        y[i] += 5
        y[1:3, i] = torch.tensor([7.0, 8.0])
        return y

    wrapped = inference(forward)
    for start in (0, 2):
        expected = forward(X, torch.tensor(start))
        torch.testing.assert_close(wrapped(X, torch.tensor(start)), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "forward",
    [lambda x, i: x[:i], lambda x, i: x[i:], lambda x, i: x[i : i * 2], lambda x, i: x[i : i + 9]],
    ids=["from the start", "to the end", "another distance", "too long"],
)
def test_other_slices_say_that_a_value_is_needed(forward):
    with pytest.raises(poptorch.Error, match="forward reads the value of a tensor"):
        inference(forward)(X, ONE)


def test_other_indices_are_left_alone():
    wrapped = inference(lambda x: (x[1:3], x[torch.tensor([0, 2])], x[..., -1]))
    for actual, expected in zip(wrapped(X), (X[1:3], X[[0, 2]], X[:, -1]), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)

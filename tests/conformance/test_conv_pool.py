"""Convolutions that are pooled before they are written, against torch."""

import itertools
import math

import pytest
import torch

from abele.errors import CorruptExecutable
from abele.kernels import on_tensors
from helpers.kernel_library import NEEDS_COMPILER

aten = torch.ops.aten
pytestmark = NEEDS_COMPILER

# in channels, out channels, kernel, stride, padding, height and width
CASES = [
    (1, 5, (3, 3), (1, 1), (0, 0), (14, 14)),
    (5, 12, (5, 5), (1, 1), (0, 0), (13, 13)),
    (1, 7, (5, 5), (1, 1), (0, 0), (16, 34)),
]


def tensors(batch, case):
    channels, filters, kernel, stride, padding, size = case
    torch.manual_seed(batch)
    x, weight = torch.randn(batch, channels, *size), torch.randn(filters, channels, *kernel)
    return x, weight, torch.randn(filters), stride, padding


def pointers(*tensors):
    return [None if each is None else each.data_ptr() for each in tensors]


def conv_pool(own, x, weight, bias, *steps, relu, places=False, threads=1):
    """The largest values of windows of 2x2 of a convolution, and their places."""
    *first, height, width = on_tensors.result_shape(x.shape, weight.shape, *steps)
    y = torch.empty((*first, height // 2, width // 2))
    where = torch.empty(on_tensors.place_count(y.shape), dtype=torch.uint8) if places else None
    description = on_tensors.describe(x.shape, weight.shape, *steps, slope=0.0 if relu else 1.0)
    own.abele_conv_pool(description, *pointers(x, weight, bias, y, where), threads)
    return y, where


def conv_pool_backward(own, grad, places, x, weight, stride, padding, mask):
    """The gradients of images, weight and bias that the mask asks for."""
    shapes = x.shape, weight.shape, weight.shape[:1]
    results = [torch.empty(s) if wanted else None for s, wanted in zip(shapes, mask, strict=True)]
    description = on_tensors.describe(x.shape, weight.shape, stride, padding)
    given = pointers(grad, places, x, weight, *results)
    own.abele_conv_pool_backward(description, *given, 1)
    return results


def test_places_are_read_by_any_number_of_threads(own):
    x, weight, bias, *steps = tensors(16, CASES[1])  # eight for each of two: in half registers
    results = []
    for one, other in ((1, 2), (2, 1)):
        y, places = conv_pool(own, x, weight, bias, *steps, relu=True, places=True, threads=one)
        back = own.abele_conv_pool_backward
        grad_x = torch.empty_like(x)
        given = *pointers(y, places, x, weight, grad_x), None, None
        back(on_tensors.describe(x.shape, weight.shape, *steps), *given, other)
        results.append((y, grad_x))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("mask", list(itertools.product([False, True], repeat=3))[1:], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_do_not_depend_on_which_are_wanted(own, case, mask):
    x, weight, bias, *steps = tensors(20, case)
    y, places = conv_pool(own, x, weight, bias, *steps, relu=True, places=True)
    gradients = conv_pool_backward(own, y, places, x, weight, *steps, mask)
    all_ = conv_pool_backward(own, y, places, x, weight, *steps, [True] * 3)
    for ours, one, wanted in zip(gradients, all_, mask, strict=True):
        assert ours is None if not wanted else torch.equal(ours, one)


@pytest.mark.parametrize("size", [3, 5])
def test_gradients_of_one_input_channel_are_as_exact_as_torchs(own, size):
    """They are summed window by window; float64 says how exactly."""
    case = (1, 4, (size, size), (1, 1), (0, 0), (27 + size, 27 + size))
    x, weight, bias, *steps = tensors(16, case)
    y, places = conv_pool(own, x, weight, bias, *steps, relu=True, places=True)
    grad, mask = torch.randn_like(y), [False, True, True]
    ours = conv_pool_backward(own, grad, places, x, weight, *steps, mask)[1:]

    def of_torch(dtype):
        leaves = [each.to(dtype).requires_grad_() for each in (weight, bias)]
        pooled = torch.max_pool2d(torch.conv2d(x.to(dtype), *leaves).relu(), 2)
        return torch.autograd.grad(pooled, leaves, grad.to(dtype))

    exact, theirs = of_torch(torch.float64), of_torch(torch.float32)
    for own_one, torchs, wanted in zip(ours, theirs, exact, strict=True):
        assert (own_one - wanted).norm() <= 1.5 * (torchs - wanted).norm()


def test_nobody_has_to_want_places(own):
    inputs = tensors(20, CASES[0])
    y, places = conv_pool(own, *inputs, relu=True)
    assert places is None
    assert torch.equal(y, conv_pool(own, *inputs, relu=True, places=True)[0])


def windows_of(values):
    """Sixteen images of one window each, through a convolution that changes nothing."""
    return torch.tensor(values).reshape(1, 1, 2, 2).repeat(16, 1, 1, 1), torch.ones(1, 1, 1, 1)


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 1.0, 1.0, 1.0],
        [0.0, -1.0, 0.0, -2.0],
        [-1.0, -2.0, -3.0, -4.0],
        [math.nan, 1.0, 2.0, 3.0],
        [1.0, math.nan, math.nan, 3.0],
        [-math.inf, -math.inf, -1.0, -math.inf],
        [1.0, math.inf, 2.0, math.inf],
    ],
    ids=str,
)
@pytest.mark.parametrize("relu", [False, True])
def test_ties_and_special_values_are_those_of_torch(own, values, relu):
    x, weight = windows_of(values)
    steps = (1, 1), (0, 0)
    y, places = conv_pool(own, x, weight, None, *steps, relu=relu, places=True)
    grad_x, *_ = conv_pool_backward(
        own, torch.full_like(y, 3.0), places, x, weight, *steps, [True, False, False]
    )
    leaf = x.clone().requires_grad_()
    expected = torch.max_pool2d(leaf.relu() if relu else leaf, 2)
    expected.backward(torch.full_like(y, 3.0))
    torch.testing.assert_close(y, expected.detach(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(grad_x, leaf.grad)


def test_other_activations_have_no_code(own):
    x, weight, bias, *steps = tensors(16, CASES[0])
    description = on_tensors.describe(x.shape, weight.shape, *steps, slope=0.5)
    given = pointers(x, weight, bias, x, None)
    with pytest.raises(CorruptExecutable, match="abele_conv_pool has no code for these sizes"):
        own.abele_conv_pool(description, *given, 1)

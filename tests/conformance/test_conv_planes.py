"""Convolutions of images with their channels apart, against torch in double precision."""

import itertools
import math

import pytest
import torch

from helpers.kernel_library import NEEDS_COMPILER, conv, conv_backward

aten = torch.ops.aten
pytestmark = NEEDS_COMPILER

# in channels, out channels, kernel, stride, padding, height and width
CASE = (5, 12, (5, 5), (1, 1), (0, 0), (13, 13))


def tensors(batch, case, dtype=torch.float32):
    channels, filters, kernel, stride, padding, size = case
    x = torch.randn(batch, channels, *size, dtype=dtype)
    weight = torch.randn(filters, channels, *kernel, dtype=dtype)
    grad = torch.randn_like(aten.conv2d(x, weight, None, stride, padding))
    return x, weight, torch.randn(filters, dtype=dtype), grad


def backward(grad, x, weight, stride, padding, mask):
    rest = [weight.shape[0]], stride, padding, [1, 1], False, [0, 0], 1, mask
    return aten.convolution_backward(grad, x, weight, *rest)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [16, 64])
@pytest.mark.parametrize("mask", list(itertools.product([False, True], repeat=3))[1:], ids=str)
def test_gradients_do_not_depend_on_which_are_wanted(own, mask, batch, threads):
    x, weight, _, grad = tensors(batch, CASE)
    gradients = conv_backward(own, grad, x, weight, (1, 1), (0, 0), mask, threads=threads)
    everything = conv_backward(own, grad, x, weight, (1, 1), (0, 0), [True] * 3, threads=threads)
    for ours, all_, wanted in zip(gradients, everything, mask, strict=True):
        assert ours is None if not wanted else torch.equal(ours, all_)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_special_values_reach_the_result(own, value):
    x, weight, bias, grad = tensors(17, CASE)
    x[16, 3, 6, 6] = value
    actual = conv(own, x, weight, bias, (1, 1), (0, 0), threads=1)
    expected = aten.conv2d(x, weight, bias)
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual.isinf(), expected.isinf())
    grad[16, 2, 4, 4] = value
    gradients = conv_backward(own, grad, x, weight, (1, 1), (0, 0), [True] * 3)
    expected = backward(grad, x, weight, (1, 1), (0, 0), [True] * 3)
    for ours, theirs in zip(gradients, expected, strict=True):
        assert torch.equal(ours.isfinite(), theirs.isfinite())

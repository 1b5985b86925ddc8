"""Convolutions of images with their channels apart, against torch in double precision."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from helpers.kernel_library import NEEDS_COMPILER, conv, conv_backward

aten = torch.ops.aten
pytestmark = NEEDS_COMPILER

# in channels, out channels, kernel, stride, padding, height and width
CASES = [
    (1, 5, (3, 3), (1, 1), (0, 0), (14, 14)),
    (5, 12, (5, 5), (1, 1), (0, 0), (13, 13)),
    (1, 1, (1, 1), (1, 1), (0, 0), (1, 1)),
    (3, 7, (1, 1), (1, 1), (0, 0), (6, 9)),
    (17, 2, (1, 1), (2, 2), (1, 1), (7, 7)),
    (2, 13, (3, 3), (2, 2), (1, 1), (9, 8)),
    (4, 31, (3, 5), (1, 2), (2, 1), (8, 11)),
    (32, 3, (5, 3), (2, 1), (2, 0), (9, 9)),
    (13, 32, (3, 3), (1, 1), (1, 1), (5, 17)),
    (6, 6, (5, 5), (2, 2), (2, 2), (10, 10)),
    (2, 3, (2, 7), (3, 3), (1, 3), (8, 13)),
    (3, 4, (4, 1), (1, 3), (2, 2), (5, 6)),
    (2, 7, (3, 3), (1, 1), (2, 1), (130, 70)),
]


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
    case = CASES[1]
    x, weight, _, grad = tensors(batch, case)
    gradients = conv_backward(own, grad, x, weight, (1, 1), (0, 0), mask, threads=threads)
    everything = conv_backward(own, grad, x, weight, (1, 1), (0, 0), [True] * 3, threads=threads)
    for ours, all_, wanted in zip(gradients, everything, mask, strict=True):
        assert ours is None if not wanted else torch.equal(ours, all_)


@pytest.mark.parametrize("batch", [64, 96])  # the number of blocks of sixteen, or of eight, is even
def test_samples_of_a_thread_follow_each_other(own, batch):
    x, weight, _, grad = tensors(batch, CASES[0])
    half = batch // 2
    both, *apart = (
        conv_backward(own, grad[rows], x[rows], weight, (1, 1), (0, 0), [True] * 3, threads=threads)
        for rows, threads in ((slice(None), 2), (slice(half), 1), (slice(half, None), 1))
    )
    for sum_, first, second in zip(both[1:], *(each[1:] for each in apart), strict=True):
        assert torch.equal(sum_, first + second)


# Threads with half a register of samples each add what one thread adds.
@pytest.mark.parametrize("batch", [3, 8, 11, 16])
def test_bits_of_so_few_samples_do_not_depend_on_threads(own, batch):
    x, weight, bias, grad = tensors(batch, CASES[1])
    one, two = (
        [
            conv(own, x, weight, bias, (1, 1), (0, 0), threads=threads),
            *conv_backward(own, grad, x, weight, (1, 1), (0, 0), [True] * 3, threads=threads),
        ]
        for threads in (1, 2)
    )
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_special_values_reach_the_result(own, value):
    x, weight, bias, grad = tensors(17, CASES[1])
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

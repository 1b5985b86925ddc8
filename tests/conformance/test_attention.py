"""Our attention is as accurate as torch's; ``test_kernel_self_test.py`` has numbers of threads."""

from __future__ import annotations

import ctypes
import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from abele.kernels import binding
from helpers.kernel_library import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER

# Queries, keys, depth, depth of values, and whether a query sees only keys up to its own.
SIZES = [
    (1, 1, 1, 1, False),
    (64, 64, 32, 32, True),
    (128, 128, 64, 64, False),
    (150, 150, 24, 40, True),
    (70, 200, 16, 48, False),
    (130, 70, 33, 16, True),
    (20, 90, 64, 7, True),
]


def inputs(sizes):
    """Query, key, value and the gradient of the result, of three samples and two heads."""
    queries, keys, depth, value_depth, _ = sizes
    generator = torch.Generator().manual_seed(sum(sizes))
    shapes = (queries, depth), (keys, depth), (keys, value_depth), (queries, value_depth)
    return [torch.randn(3, 2, *each, generator=generator) for each in shapes]


def described(sizes):
    queries, keys, depth, value_depth, causal = sizes
    scale = 1 / math.sqrt(depth)
    return binding.Attention(3, 2, queries, keys, depth, value_depth, int(causal), scale)


def steps(*tensors):
    return (binding.Steps * len(tensors))(*(each.stride()[:3] for each in tensors))


def computed(own, sizes):
    """The result and the gradients of query, key and value."""
    q, k, v, grad = inputs(sizes)
    y, logarithms = torch.full_like(grad, math.nan), torch.full(q.shape[:3], math.nan)
    shape = ctypes.byref(described(sizes))
    places = [each.data_ptr() for each in (q, k, v, y, logarithms)]
    own.abele_attention(shape, steps(q, k, v, y), *places, 1)
    results = [torch.full_like(each, math.nan) for each in (q, k, v)]
    places = [each.data_ptr() for each in (grad, q, k, v, y, logarithms, *results)]
    own.abele_attention_backward(shape, steps(grad, q, k, v, y, *results), *places, 1)
    return [y, *results]


def of_torch(sizes, dtype):
    q, k, v, grad = (each.to(dtype) for each in inputs(sizes))
    for each in (q, k, v):
        each.requires_grad_()
    y = F.scaled_dot_product_attention(q, k, v, is_causal=sizes[4])
    y.backward(grad)
    return [y.detach(), q.grad, k.grad, v.grad]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_is_as_accurate_as_that_of_torch(own, sizes):
    exact, torchs = of_torch(sizes, torch.float64), of_torch(sizes, torch.float32)
    for ours, theirs, value in zip(computed(own, sizes), torchs, exact, strict=True):
        error, allowed = ((each - value).abs().max() for each in (ours, theirs))
        # Of a few sums, one may be rounded worse by chance.
        assert error <= 1.5 * allowed + 1e-6

"""Bilinear doubling of channels-last images, by the kernel and in programs that run op by op."""

from __future__ import annotations

import math

import pytest
import torch

from abele.kernels import on_tensors
from helpers.kernel_library import NEEDS_COMPILER, replacement

aten = torch.ops.aten
pytestmark = NEEDS_COMPILER

SHAPES = [
    *((1, 1, 1, 1), (2, 8, 1, 2), (1, 16, 2, 1), (2, 3, 2, 2), (1, 4, 3, 3), (2, 24, 4, 5)),
    *((3, 5, 7, 9), (1, 32, 16, 3), (2, 8, 20, 33)),
]


def images(shape, kind="random"):
    torch.manual_seed(3)
    x = torch.randn(shape)
    if kind == "special":
        x[torch.rand_like(x) < 0.1] = math.nan
        x[torch.rand_like(x) < 0.1] = -math.inf
    return x.contiguous(memory_format=torch.channels_last)


def close(ours, wanted):
    torch.testing.assert_close(ours, wanted, rtol=1e-6, atol=1e-6, equal_nan=True)
    assert ours.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", ["random", "special"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_doubled_images_are_those_of_torch(own, shape, kind):
    x = images(shape, kind)
    wanted = aten.upsample_bilinear2d(x, [2 * n for n in shape[2:]], False)
    first = on_tensors.upsample(own, x, threads=1)
    close(first, wanted)
    for threads in (2, 3):
        ours = on_tensors.upsample(own, x, threads=threads)
        torch.testing.assert_close(ours, first, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", ["random", "special"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_those_of_torch(own, shape, kind):
    grad = images((*shape[:2], 2 * shape[2], 2 * shape[3]), kind)
    wanted = aten.upsample_bilinear2d_backward(grad, list(grad.shape[2:]), list(shape), False)
    first = on_tensors.upsample_backward(own, grad, threads=1)
    close(first, wanted)
    for threads in (2, 3):
        ours = on_tensors.upsample_backward(own, grad, threads=threads)
        torch.testing.assert_close(ours, first, rtol=0, atol=0, equal_nan=True)


def test_images_with_their_channels_apart_are_refused(own):
    with pytest.raises(ValueError, match="channels_last"):
        on_tensors.upsample(own, torch.randn(2, 3, 4, 5))
    with pytest.raises(ValueError, match="channels_last"):
        on_tensors.upsample_backward(own, torch.randn(2, 3, 4, 6))


def node_of(target, *arguments, dtype=torch.float32):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, 8, 4, 6, dtype=dtype, device="meta")
    return graph.call_function(target, (x, *arguments))


def test_only_exact_doubling_without_aligned_corners_is_ours(own):
    forward, backward = aten.upsample_bilinear2d.default, aten.upsample_bilinear2d_backward.default
    shape = [2, 8, 2, 3]
    assert replacement(node_of(forward, [8, 12], False, 2.0, 2.0), own) is not None
    assert replacement(node_of(forward, [8, 12], False), own) is not None
    assert replacement(node_of(backward, [4, 6], shape, False), own) is not None
    assert replacement(node_of(forward, [8, 13], False), own) is None
    assert replacement(node_of(forward, [8, 12], True), own) is None
    assert replacement(node_of(forward, [8, 12], False, 2.1, 2.0), own) is None
    assert replacement(node_of(forward, [8, 12], False, dtype=torch.float64), own) is None
    assert replacement(node_of(backward, [4, 7], shape, False), own) is None
    assert replacement(node_of(aten.relu.default), own) is None


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_programs_take_images_as_they_lie(own, layout):
    x = torch.randn(2, 8, 4, 6).contiguous(memory_format=layout)
    arguments = [8, 12], False
    forward = replacement(node_of(aten.upsample_bilinear2d.default, *arguments), own)
    assert forward is not None
    torch.testing.assert_close(forward(x, *arguments), aten.upsample_bilinear2d(x, *arguments))
    back = [4, 6], [2, 8, 2, 3], False
    backward = replacement(node_of(aten.upsample_bilinear2d_backward.default, *back), own)
    assert backward is not None
    wanted = aten.upsample_bilinear2d_backward(x, *back)
    torch.testing.assert_close(backward(x, *back), wanted)

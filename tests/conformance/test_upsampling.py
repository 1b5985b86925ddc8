"""Bilinear doubling of channels-last images, by the kernel and in programs that run op by op."""

import pytest
import torch

from abele.kernels import on_tensors
from helpers.kernel_library import NEEDS_COMPILER, replacement

aten = torch.ops.aten
pytestmark = NEEDS_COMPILER


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

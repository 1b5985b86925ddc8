"""Convolutions with a kernel for each channel in emitted code are those of the interpreter."""

import pytest
import torch
from torch.nn.functional import conv2d

from abele.targets.cpu.emitted.calls import convolutions
from helpers.convolution_nodes import forward_node
from helpers.emitted_operators import Case, test_as_the_interpreter  # noqa: F401

G = torch.Generator().manual_seed(8)


def numbers(*shape):
    return torch.randn(shape, generator=G)


IMAGES, BIAS = numbers(2, 6, 13, 19), numbers(6)
SMALL, MIDDLE, LARGE = (numbers(6, 1, size, size) for size in (3, 5, 7))
CLOSE = {"gradients": True, "rtol": 1e-4, "atol": 1e-4}
LAST = {"memory_format": torch.channels_last}
CASES = {
    "sizes": Case(
        lambda x, a, b, c: (
            conv2d(x, a, groups=6, padding=1),
            conv2d(x, b, groups=6),
            conv2d(x, c, groups=6, padding=(3, 2)),
        ),
        (IMAGES, SMALL, MIDDLE, LARGE),
        **CLOSE,
    ),
    "steps": Case(
        lambda x, a, b, c: (
            conv2d(x, a, groups=6, padding=1, stride=2),
            conv2d(x, b, groups=6, padding=2, stride=2),
            conv2d(x[:1], c, groups=6, stride=2),
        ),
        (IMAGES, SMALL, MIDDLE, LARGE),
        **CLOSE,
    ),
    "a bias and an activation": Case(
        lambda x, a, bias: conv2d(x, a, bias, groups=6, padding=1).relu(),
        (IMAGES, SMALL, BIAS),
        **CLOSE,
    ),
    # Images of one pixel lie in both orders; torch's result has channels last then.
    "one pixel": Case(
        lambda x, a: conv2d(x[..., :1, :1].contiguous().to(**LAST), a, groups=6, padding=2).sin(),
        (IMAGES, SMALL),
        **CLOSE,
    ),
    "left to the library": Case(
        lambda x, a: (
            conv2d(x, a, groups=6, padding=2, dilation=2),
            conv2d(x, a, groups=6, stride=3),
            conv2d(x, a, groups=6, stride=(1, 2)),
            conv2d(x, torch.cat([a, a]), groups=6),
        ),
        (IMAGES, SMALL),
        calls={"convolution.default": 4, "convolution_backward.default": 4},
        same_for_threads=False,
        **CLOSE,
    ),
}


def depthwise(**settings):
    return torch.nn.Conv2d(8, 8, groups=8, **settings)


@pytest.mark.parametrize(
    ("settings", "ours"),
    [
        ({"kernel_size": 3, "padding": 1}, True),
        ({"kernel_size": 7, "stride": 2}, True),
        ({"kernel_size": 4}, False),
        ({"kernel_size": (3, 5)}, False),
        ({"kernel_size": 3, "stride": 3}, False),
        ({"kernel_size": 3, "padding": 3}, False),
        ({"kernel_size": 3, "dilation": 2}, False),
        ({"kernel_size": 3, "dtype": torch.float64}, False),
    ],
    ids=str,
)
def test_which_are_ours(settings, ours):
    images = torch.ones(2, 8, 16, 16, dtype=settings.get("dtype"))
    assert convolutions.is_ours(forward_node(depthwise(**settings), images)) == ours


def test_other_layouts_are_left_to_the_library():
    images = torch.ones(2, 8, 16, 16).to(memory_format=torch.channels_last)
    assert not convolutions.is_ours(forward_node(depthwise(kernel_size=3), images))

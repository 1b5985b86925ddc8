"""Convolutions of 1x1 in emitted code are those of the interpreter, and called products."""

import pytest
import torch
from torch.nn.functional import conv1d, conv2d, conv3d, conv_transpose2d

from abele.targets.cpu.emitted.calls import pointwise_convolutions
from helpers.convolution_nodes import forward_node
from helpers.emitted_operators import Case, test_as_the_interpreter  # noqa: F401

G = torch.Generator().manual_seed(7)


def numbers(*shape):
    return torch.randn(shape, generator=G)


IMAGES, WEIGHT, BIAS = numbers(3, 24, 9, 7), numbers(40, 24, 1, 1), numbers(40)
CLOSE = {"gradients": True, "rtol": 1e-4, "atol": 1e-3}
CASES = {
    "images": Case(lambda x, w: conv2d(x, w), (IMAGES, WEIGHT), **CLOSE),
    "a bias": Case(lambda x, w, b: conv2d(x, w, b).relu(), (IMAGES, WEIGHT, BIAS), **CLOSE),
    "one sample": Case(
        lambda x, w, b: conv2d(x[:1], w, b), (IMAGES, WEIGHT, BIAS), same_for_threads=True, **CLOSE
    ),
    "a stride": Case(
        lambda x, w, b: (
            conv2d(x.repeat(1, 1, 2, 2), w, b, stride=2),
            conv2d(x.repeat(1, 1, 1, 2), w, stride=(1, 2)),
            conv2d(x.repeat(1, 1, 2, 3)[:1], w, stride=(3, 1)),
        ),
        (IMAGES, WEIGHT, BIAS),
        **CLOSE,
    ),
    "one pixel": Case(
        lambda x, w, b: conv2d(x.mean((2, 3), keepdim=True), w, b).sigmoid(),
        (numbers(12, 24, 3, 3), WEIGHT, BIAS),
        **CLOSE,
    ),
    "one pixel of one channel": Case(
        lambda x, w, b: conv2d(x, w[:, :1], b), (numbers(2, 1, 1, 1), WEIGHT, BIAS), **CLOSE
    ),
    "one dimension": Case(
        lambda x, w, b: conv1d(x, w[..., 0], b), (numbers(4, 24, 50), WEIGHT, BIAS), **CLOSE
    ),
    "three dimensions": Case(
        lambda x, w, b: conv3d(x, w[..., None], b), (numbers(2, 24, 3, 4, 5), WEIGHT, BIAS), **CLOSE
    ),
    "few pixels, many weights": Case(
        lambda x, w, b: (
            conv2d(x[..., :4, :5], w.repeat(9, 9, 1, 1), b.repeat(9)),
            conv2d(x[..., :5, :9], w.repeat(9, 9, 1, 1), stride=2).relu(),
        ),
        (numbers(3, 216, 9, 9), WEIGHT, BIAS),
        gradients=True,
        rtol=1e-4,
        atol=1e-2,
    ),
    "windows side by side": Case(
        lambda x, w, b: (
            conv2d(x.repeat(1, 1, 2, 2), w[:, :16].reshape(40, 4, 2, 2).repeat(1, 6, 1, 1), b, 2),
            conv2d(x.repeat(1, 1, 2, 2)[:1], w.reshape(40, 4, 2, 3).repeat(1, 6, 1, 1), b, (2, 3)),
            conv2d(
                x.repeat(1, 1, 2, 2), w[:, :9].reshape(40, 1, 3, 3).repeat(1, 24, 1, 1), None, 3
            ),
        ),
        (IMAGES, WEIGHT, BIAS),
        **CLOSE,
    ),
    "left to the library": Case(
        lambda x, w, b: (
            conv2d(x[..., :2, :2], w, b),
            conv2d(x, w[:4]),
            conv2d(x, w[:, :12], b, groups=2),
            conv2d(x, w, b, padding=1),
            conv_transpose2d(x, w[:24, :16]),
        ),
        (IMAGES, WEIGHT, BIAS),
        calls={"convolution.default": 4, "convolution_backward.default": 4},
        same_for_threads=False,
        **CLOSE,
    ),
}


@pytest.mark.parametrize(
    ("settings", "size", "ours"),
    [
        ((24, 40, 1), 8, True),
        ((24, 40, 1, 2), 16, True),
        ((512, 512, 1), 1, True),
        ((24, 40, 2, 2), 16, True),
        ((24, 40, 3), 8, False),
        ((24, 40, 2, 2, 0, 2), 16, False),
        ((24, 40, 1, 1, 1), 8, False),
        ((512, 512, 1), 7, True),
        ((24, 40, 1, 1, 0, 1, 8), 8, False),
        ((24, 4, 1), 8, False),
        ((24, 40, 1), 2, False),
    ],
)
def test_which_are_products(settings, size, ours):
    images = torch.ones(4, settings[0], size, size)
    node = forward_node(torch.nn.Conv2d(*settings), images)
    assert pointwise_convolutions.is_ours(node) == ours


def test_other_layouts_are_left_to_the_library():
    images = torch.ones(4, 24, 8, 8).to(memory_format=torch.channels_last)
    node = forward_node(torch.nn.Conv2d(24, 40, 1), images)
    assert not pointwise_convolutions.is_ours(node)

"""Convolutions whose windows lie side by side, and transposed ones, against torch in double."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from abele.errors import CorruptExecutable
from abele.kernels import on_tensors
from abele.kernels.convolutions import PATCHES, kernel_of
from helpers.kernel_library import NEEDS_COMPILER, error, replacement

aten = torch.ops.aten
pytestmark = [*NEEDS_COMPILER, pytest.mark.usefixtures("capable")]

# images, small and large channels, height and width of the small images, and of the kernel: tiles
# that are full or not, several panels and runs of a sum, parts of one row and of several
CASES = [
    (2, 32, 16, 9, 13, 2, 2),
    (1, 16, 8, 1, 8, 2, 2),
    (3, 48, 24, 7, 17, 2, 2),
    (1, 144, 16, 5, 9, 2, 2),
    (2, 16, 16, 3, 8, 1, 3),
    (1, 16, 8, 4, 10, 4, 4),
    (2, 80, 3, 20, 8, 3, 16),
]
LAST = {"memory_format": torch.channels_last}


def tensors(case):
    """Small and large images, the weight."""
    images, small, large, height, width, high, wide = case
    torch.manual_seed(5)
    x = torch.randn(images, small, height, width).contiguous(**LAST)
    y = torch.randn(images, large, height * high, width * wide).contiguous(**LAST)
    return x, y, torch.randn(small, large, high, wide)


def settings_of(case, *, transposed):
    kernel = list(case[5:])
    return kernel, [0, 0], [1, 1], transposed, [0, 0], 1


def convolved(own, case, *, transposed, bias):
    """Result and gradients through the kernels, and what torch gives from doubles and floats."""
    small, large, weight = tensors(case)
    x, grad = (small, large) if transposed else (large, small)
    start = torch.randn(grad.shape[1], 2)[:, 1] if bias else None  # it may be a column
    settings = settings_of(case, transposed=transposed)
    rest = [grad.shape[1]], *settings, [True] * 3
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(name) for name in ("grad", "x", "weight", "bias")]
    for node, value in zip(nodes, (grad, x, weight, start), strict=True):
        node.meta["val"] = value
    forward = graph.call_function(aten.convolution.default, (*nodes[1:], *settings))
    backward = graph.call_function(aten.convolution_backward.default, (*nodes[:3], *rest))
    assert kernel_of(forward) is PATCHES
    ours = [replacement(forward, own)(x, weight, start, *settings)]
    ours += replacement(backward, own)(grad, x, weight, *rest)

    def by_torch(dtype):
        a, b, w = (each.to(dtype).contiguous() for each in (x, grad, weight))
        added = None if start is None else start.to(dtype)
        y = aten.convolution(a, w, added, *settings)
        return [y, *aten.convolution_backward(b, a, w, *rest)]

    return ours, by_torch(torch.float64), by_torch(torch.float32)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_and_gradients_are_as_exact_as_eagers(own, case, transposed):
    for bias in (False, True):
        for value, exact, eager in zip(
            *convolved(own, case, transposed=transposed, bias=bias), strict=True
        ):
            assert value.shape == exact.shape
            assert error(value, exact) < max(2e-7, error(eager, exact))


def test_no_images_have_no_weight_gradient(own):
    small, large, weight = tensors((0, 16, 8, 4, 8, 2, 2))
    assert on_tensors.spread(own, small, weight, None).shape == large.shape
    assert torch.equal(on_tensors.weight_gradient(own, small, large, weight), weight * 0)


@pytest.mark.parametrize("mask", list(itertools.product([False, True], repeat=3)), ids=str)
def test_backward_gives_what_was_asked_for(own, mask):
    small, large, weight = tensors(CASES[0])
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(name) for name in ("grad", "x", "weight")]
    nodes[1].meta["val"], nodes[2].meta["val"] = small, weight
    rest = [16], *settings_of(CASES[0], transposed=True), list(mask)
    node = graph.call_function(aten.convolution_backward.default, (*nodes, *rest))
    given = replacement(node, own)(large, small, weight, *rest)
    assert [each is not None for each in given] == list(mask)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_reaches_its_window_alone(own, bad):
    small, _, weight = tensors(CASES[0])
    small[0, 3, 4, 5] = bad
    spread = on_tensors.spread(own, small, weight, None).isfinite().logical_not()
    assert spread[0, :, 8:10, 10:12].all()
    assert spread.sum() == 16 * 4


@pytest.mark.parametrize(
    "settings",
    [
        {"stride": [2, 1]},
        {"stride": [1, 1]},
        {"padding": [1, 1]},
        {"dilation": [2, 2]},
        {"output_padding": [1, 1]},
        {"groups": 2},
        {"small": 24},
        {"large": 12},
        {"width": 7},
        {"dtype": torch.float64},
        {"transposed": False, "odd": 1},
    ],
    ids=str,
)
def test_others_stay_the_librarys(settings):
    def setting(name, usual):
        return settings.get(name, usual)

    transposed, width = setting("transposed", True), setting("width", 16)
    channels = setting("small", 16), setting("large", 16)
    shape = (1, channels[0], 8, width) if transposed else (1, channels[1], 16, 2 * width + 1)
    graph = torch.fx.Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    x.meta["val"] = torch.empty(shape, dtype=setting("dtype", torch.float32))
    weight.meta["val"] = torch.empty(*channels, 2, 2)
    moves = setting("stride", [2, 2]), setting("padding", [0, 0]), setting("dilation", [1, 1])
    rest = transposed, setting("output_padding", [0, 0]), setting("groups", 1)
    node = graph.call_function(aten.convolution.default, (x, weight, None, *moves, *rest))
    assert kernel_of(node) is None


def test_channels_without_code_are_refused(own):
    small, large, weight = tensors((1, 12, 16, 4, 8, 2, 2))
    with pytest.raises(CorruptExecutable, match="abele_patches_spread has no code"):
        on_tensors.spread(own, small, weight, None)
    with pytest.raises(CorruptExecutable, match="abele_patches_gather has no code"):
        on_tensors.gather(own, large, weight, None)
    with pytest.raises(CorruptExecutable, match="abele_patches_weight has no code"):
        on_tensors.weight_gradient(own, small, large, weight)


def test_images_that_lie_otherwise_are_refused(own):
    small, _, weight = tensors(CASES[0])
    with pytest.raises(ValueError, match="channels_last, not strides"):
        on_tensors.spread(own, small.contiguous(), weight, None)

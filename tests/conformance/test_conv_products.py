"""Convolutions that are products of matrices, by the kernels that programs call, against torch.

Those of 1x1 pixels, those whose windows lie side by side, and transposed ones.
"""

import itertools
import math

import pytest
import torch

from abele.errors import CorruptExecutable
from abele.kernels import on_tensors
from abele.kernels.convolutions import POINTWISE, kernel_of
from helpers.kernel_library import NEEDS_COMPILER, replacement

aten = torch.ops.aten
pytestmark = [*NEEDS_COMPILER, pytest.mark.usefixtures("capable")]

LAST = torch.channels_last
SETTINGS = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
# images, inputs, outputs, height, width, and the strides of both
OF_POINTS = (3, 40, 33, 16, 12, 2, 2)
# images, small and large channels, height and width of the small images, and of the kernel
OF_WINDOWS = (2, 32, 16, 9, 13, 2, 2)


class Convolved:
    """A convolution with its operands, by our kernels and by torch."""

    def __init__(self, kind, sizes, **changes):
        torch.manual_seed(6)
        if kind == "pointwise":
            images, inputs, outputs, height, width, *stride = sizes
            x, weight = torch.randn(images, inputs, height, width), (outputs, inputs, 1, 1)
            out = [-(-size // step) for size, step in zip((height, width), stride, strict=True)]
            grad = torch.randn(images, outputs, *out)
        else:
            images, few, many, height, width, *stride = sizes
            small = torch.randn(images, few, height, width)
            large = torch.randn(images, many, height * stride[0], width * stride[1])
            x, grad = (small, large) if kind == "transposed" else (large, small)
            weight = (few, many, *stride)
        self.x, self.grad = (each.contiguous(memory_format=LAST) for each in (x, grad))
        self.weight = torch.randn(weight)
        self.bias = torch.randn(grad.shape[1], 2)[:, 1]  # it may be a column
        usual = (stride, [0, 0], [1, 1], kind == "transposed", [0, 0], 1)
        self.settings = list({**dict(zip(SETTINGS, usual, strict=True)), **changes}.values())

    def nodes(self, mask=(True, True, True)):
        """The convolution and its backward as nodes of a graph."""
        graph = torch.fx.Graph()
        made = {name: graph.placeholder(name) for name in ("grad", "x", "weight", "bias")}
        for name, node in made.items():
            node.meta["val"] = getattr(self, name)
        grad, x, weight, bias = made.values()
        forward = (x, weight, bias, *self.settings)
        backward = (grad, x, weight, [len(self.bias)], *self.settings, list(mask))
        return (
            graph.call_function(aten.convolution.default, forward),
            graph.call_function(aten.convolution_backward.default, backward),
        )

    def ours(self, own, *, bias=True, mask=(True, True, True)):
        forward, backward = self.nodes(mask)
        added = self.bias if bias else None
        y = replacement(forward, own)(self.x, self.weight, added, *self.settings)
        rest = backward.args[3:]
        return y, *replacement(backward, own)(self.grad, self.x, self.weight, *rest)


@pytest.mark.parametrize("mask", list(itertools.product([False, True], repeat=3)), ids=str)
@pytest.mark.parametrize(
    ("kind", "sizes"), [("pointwise", OF_POINTS), ("transposed", OF_WINDOWS)], ids=str
)
def test_backward_gives_what_was_asked_for(own, kind, sizes, mask):
    made = Convolved(kind, sizes)
    _, *every = made.ours(own)
    _, *gradients = made.ours(own, mask=mask)
    for mine, all_of_them, wanted in zip(gradients, every, mask, strict=True):
        assert torch.equal(mine, all_of_them) if wanted else mine is None


@pytest.mark.parametrize(
    "changes", [{"padding": [1, 1]}, {"groups": 2}, {"transposed": True}], ids=str
)
def test_other_convolutions_of_one_pixel_are_not_products(changes):
    for node in Convolved("pointwise", OF_POINTS, **changes).nodes():
        assert kernel_of(node) is not POINTWISE


@pytest.mark.parametrize(
    ("sizes", "changes"),
    [
        ((1, 16, 16, 8, 16, 2, 2), {"stride": [2, 1]}),
        ((1, 16, 16, 8, 16, 2, 2), {"stride": [1, 1]}),
        ((1, 16, 16, 8, 16, 2, 2), {"padding": [1, 1]}),
        ((1, 16, 16, 8, 16, 2, 2), {"dilation": [2, 2]}),
        ((1, 16, 16, 8, 16, 2, 2), {"output_padding": [1, 1]}),
        ((1, 16, 16, 8, 16, 2, 2), {"groups": 2}),
        ((1, 24, 16, 8, 16, 2, 2), {}),
        ((1, 16, 12, 8, 16, 2, 2), {}),
        ((1, 16, 16, 8, 7, 2, 2), {}),
    ],
    ids=str,
)
def test_other_windows_stay_the_librarys(sizes, changes):
    assert kernel_of(Convolved("transposed", sizes, **changes).nodes()[0]) is None


def test_windows_of_doubles_and_of_a_row_that_ends_within_one_stay_the_librarys():
    of_doubles = Convolved("transposed", OF_WINDOWS)
    of_doubles.x = of_doubles.x.double()
    assert kernel_of(of_doubles.nodes()[0]) is None
    cut = Convolved("windows", (1, 16, 16, 8, 16, 2, 2))
    cut.x = torch.empty(1, 16, 16, 33)
    assert kernel_of(cut.nodes()[0]) is None


def test_no_images_have_no_weight_gradient(own):
    made = Convolved("transposed", (0, 16, 8, 4, 8, 2, 2))
    y, _, of_weight, _ = made.ours(own)
    assert y.shape == made.grad.shape
    assert torch.equal(of_weight, made.weight * 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_reaches_its_window_alone(own, bad):
    made = Convolved("transposed", OF_WINDOWS)
    made.x[0, 3, 4, 5] = bad
    reached = made.ours(own)[0].isfinite().logical_not()
    assert reached[0, :, 8:10, 10:12].all()
    assert reached.sum() == 16 * 4


def test_channels_without_code_are_refused(own):
    made = Convolved("transposed", (1, 12, 16, 4, 8, 2, 2))
    small, large, weight = made.x, made.grad, made.weight
    with pytest.raises(CorruptExecutable, match="abele_patches_spread has no code"):
        on_tensors.spread(own, small, weight, None)
    with pytest.raises(CorruptExecutable, match="abele_patches_gather has no code"):
        on_tensors.gather(own, large, weight, None)
    with pytest.raises(CorruptExecutable, match="abele_patches_weight has no code"):
        on_tensors.weight_gradient(own, small, large, weight)
    run = on_tensors.conv(
        own, (1, 4, 8, 8), (4, 4, 1, 1), (1, 1), (1, 1), layout=LAST, function="pointwise"
    )
    with pytest.raises(CorruptExecutable, match="no code"):
        run(torch.ones(1, 4, 8, 8), torch.ones(4, 4, 1, 1), None)


def test_images_that_lie_otherwise_are_refused(own):
    made = Convolved("transposed", OF_WINDOWS)
    with pytest.raises(ValueError, match="channels_last, not strides"):
        on_tensors.spread(own, made.x.contiguous(), made.weight, None)

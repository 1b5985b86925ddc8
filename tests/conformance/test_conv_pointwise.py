"""Convolutions of 1x1 of channels-last images are those of float64."""

from __future__ import annotations

import itertools

import pytest
import torch

from abele.errors import CorruptExecutable
from abele.kernels import on_tensors
from abele.kernels.convolutions import POINTWISE, kernel_of
from helpers.kernel_library import NEEDS_COMPILER, replacement

pytestmark = [*NEEDS_COMPILER, pytest.mark.usefixtures("capable")]

aten = torch.ops.aten
LAST = torch.channels_last
# Images, inputs, outputs, height, width, and the strides of both.
CASES = [
    (2, 32, 48, 9, 7, 1, 1),
    (3, 40, 33, 16, 12, 2, 2),
    (1, 64, 256, 15, 15, 2, 2),
    (2, 256, 32, 5, 16, 1, 3),
    (40, 128, 64, 1, 1, 1, 1),
]


def operands(case):
    images, inputs, outputs, height, width, *stride = case
    torch.manual_seed(6)
    x = torch.randn(images, inputs, height, width).contiguous(memory_format=LAST)
    weight, bias = torch.randn(outputs, inputs, 1, 1), torch.randn(outputs)
    out = [-(-size // step) for size, step in zip((height, width), stride, strict=True)]
    grad = torch.randn(images, outputs, *out).contiguous(memory_format=LAST)
    return (x, weight, bias, grad), [list(stride), [0, 0], [1, 1], False, [0, 0], 1]


def torchs(case, dtype):
    (x, weight, bias, grad), settings = operands(case)
    x, weight, bias, grad = (each.to(dtype) for each in (x, weight, bias, grad))
    y = aten.convolution(x, weight, bias, *settings)
    rest = aten.convolution_backward(grad, x, weight, [len(bias)], *settings, [True] * 3)
    return y, *rest


def ours(own, case, mask=(True, True, True)):
    (x, weight, bias, grad), (stride, padding, *_) = operands(case)
    sizes = x.shape, weight.shape, stride, padding
    how = {"layout": LAST, "function": "pointwise", "threads": 1}
    y = on_tensors.conv(own, *sizes, **how)(x, weight, bias)
    return y, *on_tensors.conv_backward(own, *sizes, mask, **how)(grad, x, weight)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_as_accurate_as_torch(own, case):
    exact = torchs(case, torch.float64)
    for mine, theirs, true in zip(ours(own, case), torchs(case, torch.float32), exact, strict=True):
        errors = [(each.double() - true).norm() for each in (mine, theirs)]
        assert errors[0] <= 1.5 * errors[1] + 1e-6 * true.norm()


@pytest.mark.parametrize("mask", list(itertools.product((True, False), repeat=3)), ids=str)
def test_only_wanted_gradients_are_computed(own, mask):
    whole = ours(own, CASES[1])[1:]
    for mine, all_of_them, wanted in zip(ours(own, CASES[1], mask)[1:], whole, mask, strict=True):
        assert torch.equal(mine, all_of_them) if wanted else mine is None


def nodes(case, **changes):
    """A convolution and its backward as nodes of a graph."""
    (x, weight, bias, grad), settings = operands(case)
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    settings = list({**dict(zip(names, settings, strict=True)), **changes}.values())
    graph, values = torch.fx.Graph(), {"grad": grad, "x": x, "weight": weight, "bias": bias}
    made = {name: graph.placeholder(name) for name in values}
    for name, node in made.items():
        node.meta["val"] = values[name]
    forward = graph.call_function(
        aten.convolution.default, (made["x"], made["weight"], made["bias"], *settings)
    )
    rest = [len(bias)], *settings, [True] * 3
    given = made["grad"], made["x"], made["weight"], *rest
    return forward, graph.call_function(aten.convolution_backward.default, given), values


@pytest.mark.parametrize("case", CASES, ids=str)
def test_programs_call_them(own, case):
    forward, backward, values = nodes(case)
    assert kernel_of(forward) is POINTWISE
    x, weight, bias, grad = values["x"], values["weight"], values["bias"], values["grad"]
    y = replacement(forward, own)(x, weight, bias, *forward.args[3:])
    gradients = replacement(backward, own)(grad, x, weight, *backward.args[3:])
    expected = ours(own, case)
    assert all(map(torch.equal, (y, *gradients), expected))


@pytest.mark.parametrize(
    "changes",
    [{"padding": [1, 1]}, {"groups": 2}, {"transposed": True}],
    ids=str,
)
def test_others_are_not_products(changes):
    for node in nodes(CASES[0], **changes)[:2]:
        assert kernel_of(node) is not POINTWISE


def test_what_there_is_no_code_for_is_said(own):
    run = on_tensors.conv(
        own, (1, 4, 8, 8), (4, 4, 1, 1), (1, 1), (1, 1), layout=LAST, function="pointwise"
    )
    with pytest.raises(CorruptExecutable, match="no code"):
        run(torch.ones(1, 4, 8, 8), torch.ones(4, 4, 1, 1), None)

"""Which convolutions are computed by Winograd's way; no compiler."""

from __future__ import annotations

import pytest
import torch

from abele import _torch, processor
from abele.kernels import winograd
from abele.kernels.convolution import convolution_of
from abele.kernels.ways import suits_winograd

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def capable(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(processor, "has", lambda _: False)


def nodes(
    image=(2, 32, 16, 16),
    out=32,
    *,
    kernel=3,
    stride=1,
    padding=1,
    dilation=1,
    groups=1,
    transposed=False,
    dtype=torch.float32,
):
    """A convolution, its backward, and the one with an activation, where this torch has it."""
    graph = torch.fx.Graph()
    grad, x, weight = (graph.placeholder(name) for name in ("grad", "x", "weight"))
    x.meta["val"] = torch.empty(image, dtype=dtype)
    weight.meta["val"] = torch.empty(out, image[1] // groups, kernel, kernel, dtype=dtype)
    moves = [stride] * 2, [padding] * 2, [dilation] * 2
    settings = *moves, transposed, [0, 0], groups
    yield graph.call_function(aten.convolution.default, (x, weight, None, *settings))
    arguments = grad, x, weight, None, *settings, [True] * 3
    yield graph.call_function(aten.convolution_backward.default, arguments)
    joined = _torch.convolution_with_activation()
    if joined is not None and not transposed:
        moves = [padding] * 2, [stride] * 2, [dilation] * 2
        arguments = x, weight, None, *moves, groups, "leaky_relu", [0.0], ""
        yield graph.call_function(joined, arguments)


def gains(node):
    convolution = convolution_of(node)
    return convolution is not None and winograd.gains(convolution)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"image": (1, 16, 256, 256), "out": 16},
        {"image": (32, 512, 4, 4), "out": 512},
        {"image": (2, 96, 5, 5), "out": 40},
        {"padding": 0},
    ],
    ids=str,
)
def test_convolutions_of_many_channels_gain(settings):
    assert all(map(gains, nodes(**settings)))


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel": 5},
        {"stride": 2},
        {"padding": 2},
        {"dilation": 2},
        {"groups": 2},
        {"transposed": True},
        {"dtype": torch.float64},
        {"image": (2, 3, 16, 16)},  # few channels
        {"out": 8},
        {"image": (2, 24, 16, 16)},  # a quarter of two registers would be empty
        {"image": (2, 32, 3, 3)},  # most tiles would reach beyond the image
        {"image": (0, 32, 16, 16)},
        {"image": (2, 32, 2, 16), "padding": 0},  # a result without rows
    ],
    ids=str,
)
def test_others_do_not(settings):
    assert not any(map(gains, nodes(**settings)))


def test_nor_do_other_activations_and_other_operators():
    *_, last = nodes()
    assert not gains(next(iter(last.graph.nodes)))
    if last.target is _torch.convolution_with_activation():
        last.update_arg(7, "gelu")
        assert not gains(last)


def test_processors_without_wide_registers_keep_the_library(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert not any(map(gains, nodes()))


@pytest.mark.parametrize(
    ("instructions", "gain"),
    [("clzero", True), ("clzero avx512_vp2intersect", False), ("amx_tile", False)],
    ids=str,
)
@pytest.mark.parametrize(("inputs", "out"), [(24, 24), (24, 16), (40, 24)])
def test_halves_of_registers_gain_where_they_multiply_as_fast(
    monkeypatch, instructions, gain, inputs, out
):
    monkeypatch.setattr(processor, "has", lambda name: name in instructions.split())
    settings = {"image": (2, inputs, 16, 16), "out": out}
    assert all(gains(node) is gain for node in nodes(**settings))
    # The choice of a lowering does not depend on the processor.
    assert not any(map(suits_winograd, nodes(**settings)))


@pytest.mark.parametrize(("inputs", "out"), [(8, 8), (8, 24), (24, 18)])
def test_few_channels_and_those_that_fill_not_even_halves_gain_nothing(monkeypatch, inputs, out):
    monkeypatch.setattr(processor, "has", lambda name: name == "clzero")
    assert not any(map(gains, nodes(image=(2, inputs, 16, 16), out=out)))

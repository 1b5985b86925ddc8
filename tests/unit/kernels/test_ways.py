"""Which kernel computes a convolution; no compiler."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from abele import processor
from abele.kernels import scratch
from abele.kernels.convolution import convolution_of
from abele.kernels.ways import Way, suits_winograd, way_of
from abele.targets.cpu.op_by_op.convolutions import own_convolution

aten = torch.ops.aten
PARTS = ("forward", "backward")

CHOICES = [
    # image, outputs, padding
    ((1, 16, 64, 64), 16, 1, Way.WINOGRAD),
    ((1, 32, 16, 16), 32, 0, Way.WINOGRAD),
    ((1, 24, 16, 16), 24, 1, Way.DIRECT),
    ((1, 32, 15, 15), 32, 1, Way.WINOGRAD),
    ((1, 64, 16, 16), 32, 1, Way.WINOGRAD),
    ((1, 8, 64, 64), 8, 1, Way.DIRECT),
    ((1, 8, 15, 15), 8, 1, None),
    ((1, 40, 16, 16), 50, 1, None),
    ((1, 8, 64), 8, 1, None),
    ((1, 8, 8, 16, 16), 8, 1, None),
]


@pytest.fixture(autouse=True)
def capable(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(processor, "has", lambda _: False)


def node(image, out, padding, *, backward):
    graph, pixels = torch.fx.Graph(), len(image) - 2
    grad, x, weight = (graph.placeholder(name) for name in ("grad", "x", "weight"))
    x.meta["val"] = torch.ones(image)
    weight.meta["val"] = torch.ones(out, image[1], *[3] * pixels)
    one, zero = [1] * pixels, [0] * pixels
    settings = one, [padding] * pixels, one, False, zero, 1
    if backward:
        arguments = grad, x, weight, [out], *settings, [True, False, False]
        return graph.call_function(aten.convolution_backward.default, arguments)
    return graph.call_function(aten.convolution.default, (x, weight, None, *settings))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("image", "out", "padding", "way"), CHOICES, ids=str)
def test_the_fastest_kernel_is_called(image, out, padding, way, backward):
    """Winograd's way comes first, direct kernels take what it leaves, the library the rest."""
    each = node(image, out, padding, backward=backward)
    assert way_of(convolution_of(each)) is way
    assert suits_winograd(each) is (way is Way.WINOGRAD)
    calls: list[str] = []
    names = [f"abele_{how}_{part}" for how in ("conv", "winograd") for part in PARTS]
    note = {name: lambda *_, name=name: calls.append(name) for name in names}
    kernel = own_convolution(each, SimpleNamespace(abele_threads=lambda *_: 1, **note))
    assert (kernel is None) is (way is None)
    if kernel is not None:
        kernel(*values(each))
        how = "winograd" if way is Way.WINOGRAD else "conv"
        assert calls == [f"abele_{how}_{PARTS[backward]}"]


@pytest.mark.parametrize("processor_with", ["registers of eight", "two of sixteen"])
@pytest.mark.parametrize(
    ("image", "out", "way"),
    [
        ((1, 16, 64, 64), 16, Way.DIRECT),
        ((1, 16, 64, 64), 32, Way.WINOGRAD),
        ((1, 32, 64, 64), 16, Way.WINOGRAD),
        ((1, 16, 15, 15), 16, Way.WINOGRAD),  # no direct code: rows are too short
    ],
    ids=str,
)
def test_sixteen_channels_are_computed_directly(monkeypatch, image, out, way, processor_with):
    """There Winograd's way saves no more than its transforms take."""
    if processor_with == "two of sixteen":
        monkeypatch.setattr(processor, "has", lambda name: name == "amx_tile")
    else:
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    each = node(image, out, 1, backward=False)
    assert way_of(convolution_of(each)) is way
    assert suits_winograd(each)  # the choice of a lowering does not depend on the processor


def values(each):
    """The arguments of a node, with tensors for its inputs."""
    given = [
        value.meta.get("val") if isinstance(value, torch.fx.Node) else value for value in each.args
    ]
    if given[0] is None:  # the gradient, of which only the order in memory matters
        given[0] = given[1]
    return given


def test_other_operators_are_no_convolutions():
    graph = torch.fx.Graph()
    other = graph.call_function(aten.relu.default, (graph.placeholder("x"),))
    assert convolution_of(other) is None
    assert not suits_winograd(other)


def test_winograds_way_keeps_its_weights_or_sums():
    """Sixteen numbers for each kernel of 3x3, or as many for the sums of their gradients."""
    forward, back = (
        convolution_of(node((4, 512, 4, 4), 512, 1, backward=each)) for each in (False, True)
    )
    weights = 16 * 512 * 512 * 4
    assert weights < scratch.bytes_of(forward) < 1.1 * weights
    assert weights < scratch.bytes_of(back) < 1.1 * weights
    assert scratch.bytes_of(convolution_of(node((1, 8, 64, 64), 8, 1, backward=True))) == 0


def test_halves_of_registers_take_less_memory(monkeypatch):
    """Channels that are not there take none."""
    convolution = convolution_of(node((1, 24, 2, 2), 24, 1, backward=False))
    assert scratch.bytes_of(convolution) == 0  # direct, or the library
    monkeypatch.setattr(processor, "has", lambda name: name == "clzero")
    assert way_of(convolution) is Way.WINOGRAD
    weights = 16 * 24 * 24 * 4
    assert weights < scratch.bytes_of(convolution) < 2 * weights

"""The choice of the kernel that computes a convolution, and its memory; no compiler."""

from types import SimpleNamespace

import pytest
import torch

from abele import _torch, processor
from abele.kernels.convolutions import (
    DIRECT,
    WINOGRAD,
    convolution_of,
    kernel_of,
    planes_gain,
    scratch_bytes,
    suits_winograd,
    winograd_points,
)
from abele.ops import half_products
from helpers.kernel_library import replacement

aten = torch.ops.aten
PARTS = ("forward", "backward")

CHOICES = [
    # image, outputs, padding
    ((1, 16, 64, 64), 16, 1, WINOGRAD),
    ((1, 32, 16, 16), 32, 0, WINOGRAD),
    ((1, 24, 16, 16), 24, 1, DIRECT),
    ((1, 32, 15, 15), 32, 1, WINOGRAD),
    ((1, 64, 16, 16), 32, 1, WINOGRAD),
    ((1, 8, 64, 64), 8, 1, DIRECT),
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
@pytest.mark.parametrize(
    ("image", "out", "padding", "kernel"),
    CHOICES,
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_the_fastest_kernel_is_called(image, out, padding, kernel, backward):
    """Winograd's way comes first, direct kernels take what it leaves, the library the rest."""
    each = node(image, out, padding, backward=backward)
    assert kernel_of(each) is kernel
    assert suits_winograd(each) is (kernel is WINOGRAD)
    calls: list[str] = []
    names = [f"abele_{how}_{part}" for how in ("conv", "winograd") for part in PARTS]
    note = {name: lambda *_, name=name: calls.append(name) for name in names}
    call = replacement(each, SimpleNamespace(abele_threads=lambda *_: 1, **note))
    assert (call is None) is (kernel is None)
    if call is not None:
        call(*values(each))
        how = "winograd" if kernel is WINOGRAD else "conv"
        assert calls == [f"abele_{how}_{PARTS[backward]}"]


@pytest.mark.parametrize("processor_with", ["registers of eight", "two of sixteen"])
@pytest.mark.parametrize(
    ("image", "out", "kernel"),
    [
        ((1, 16, 64, 64), 16, DIRECT),
        ((1, 16, 64, 64), 32, WINOGRAD),
        ((1, 32, 64, 64), 16, WINOGRAD),
        ((1, 16, 15, 15), 16, WINOGRAD),  # no direct code: rows are too short
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_sixteen_channels_are_computed_directly(monkeypatch, image, out, kernel, processor_with):
    """There Winograd's way saves no more than its transforms take."""
    if processor_with == "two of sixteen":
        monkeypatch.setattr(processor, "has", lambda name: name == "amx_tile")
    else:
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    each = node(image, out, 1, backward=False)
    assert kernel_of(each) is kernel
    assert suits_winograd(each)  # the choice of a lowering does not depend on the processor


@pytest.mark.parametrize("backward", [False, True])
def test_bfloat16_images_are_convolved_where_the_processor_lacks_amx(monkeypatch, backward):
    monkeypatch.setattr(half_products, "has_bfloat16_products", lambda: True)
    for tiles, kernel in ((False, WINOGRAD), (True, None)):
        monkeypatch.setattr(half_products, "has_bfloat16_tiles", lambda tiles=tiles: tiles)
        images = {(2, 32, 16, 16): kernel, (1, 32, 16, 16): None, (8, 64, 7, 7): kernel}
        for image, some in {**images, (8, 512, 8, 8): kernel, (8, 512, 7, 7): None}.items():
            each = node(image, image[1], 1, backward=backward)
            each.args[backward].meta["val"] = torch.ones(image, dtype=torch.bfloat16)
            assert kernel_of(each) is some


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


@pytest.mark.parametrize(("samples", "least", "most"), [(4, 0, 0.1), (512, 1, 2)])
def test_winograds_way_keeps_what_several_blocks_of_tiles_read(samples, least, most):
    """Sixteen numbers for each kernel of 3x3, or as many for the sums of their gradients."""
    weights = 16 * 512 * 512 * 4
    for backward in (False, True):
        found = scratch_bytes(node((samples, 512, 4, 4), 512, 1, backward=backward))
        assert least * weights < found < most * weights
    assert scratch_bytes(node((1, 8, 64, 64), 8, 1, backward=True)) == 0


def test_halves_of_registers_take_less_memory(monkeypatch):
    """Channels that are not there take none."""
    each = node((1, 24, 2, 2), 24, 1, backward=False)
    assert scratch_bytes(each) == 0  # direct, or the library
    monkeypatch.setattr(processor, "has", lambda name: name == "clzero")
    assert kernel_of(each) is WINOGRAD
    weights = 16 * 24 * 24 * 4  # of three registers of eight
    assert weights < scratch_bytes(each) < 1.2 * weights


# -- Winograd's algorithm ---------------------------------------------------------------------


def forms(
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
    return kernel_of(node) is WINOGRAD


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"image": (1, 16, 256, 256), "out": 16},
        {"image": (32, 512, 4, 4), "out": 512},
        {"image": (2, 96, 5, 5), "out": 40},
        {"padding": 0},
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_convolutions_of_many_channels_gain(settings):
    assert all(map(gains, forms(**settings)))


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
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_others_do_not(settings):
    assert not any(map(gains, forms(**settings)))


def test_nor_do_other_activations_and_other_operators():
    *_, last = forms()
    assert not gains(next(iter(last.graph.nodes)))
    if last.target is _torch.convolution_with_activation():
        last.update_arg(7, "gelu")
        assert not gains(last)


def test_processors_without_wide_registers_keep_the_library(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert not any(map(gains, forms()))


@pytest.mark.parametrize("capability", ["DEFAULT", "SVE128", "SVE256"])
def test_arm_has_our_kernels_with_and_without_sve(monkeypatch, capability):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert all(map(gains, forms()))
    for backward in (False, True):
        chosen = [kernel_of(node(*each[:3], backward=backward)) for each in CHOICES]
        assert chosen == [each[3] for each in CHOICES]


@pytest.mark.parametrize(
    ("instructions", "gain"),
    [("clzero", True), ("clzero avx512_vp2intersect", False), ("amx_tile", False)],
    ids=lambda value: getattr(value, "name", str(value)),
)
@pytest.mark.parametrize(("inputs", "out"), [(24, 24), (24, 16), (40, 24)])
def test_halves_of_registers_gain_where_they_multiply_as_fast(
    monkeypatch, instructions, gain, inputs, out
):
    monkeypatch.setattr(processor, "has", lambda name: name in instructions.split())
    settings = {"image": (2, inputs, 16, 16), "out": out}
    assert all(gains(node) is gain for node in forms(**settings))
    # The choice of a lowering does not depend on the processor.
    assert not any(map(suits_winograd, forms(**settings)))


@pytest.mark.parametrize(("inputs", "out"), [(8, 8), (8, 24), (24, 18)])
def test_few_channels_and_those_that_fill_not_even_halves_gain_nothing(monkeypatch, inputs, out):
    monkeypatch.setattr(processor, "has", lambda name: name == "clzero")
    assert not any(map(gains, forms(image=(2, inputs, 16, 16), out=out)))


@pytest.mark.parametrize(
    ("image", "points"),
    [
        ((1, 64, 56, 56), 36),
        ((1, 256, 14, 14), 36),
        ((2, 512, 7, 7), 36),
        ((1, 512, 7, 7), 16),  # four tiles would read all weights
        ((8, 32, 5, 5), 16),  # most of a second tile is beside the image
    ],
)
def test_inference_has_tiles_of_the_form_that_is_faster(image, points):
    convolution = convolution_of(node(image, image[1], 1, backward=False))
    assert convolution is not None
    assert winograd_points(convolution) == points


# -- planes in emitted code -------------------------------------------------------------------


def planes(x, weight, **settings):
    """Whether kernels of planes compute a convolution of these shapes, and its backward."""
    convolution, backward, *_ = forms(x, weight[0], kernel=weight[2], **settings)
    for each in (convolution, *backward.args[:1]):
        each.meta["val"] = torch.empty(x[0], weight[0], *x[2:])
    (ours,) = {planes_gain(each) for each in (convolution, backward)}
    return ours


@pytest.mark.parametrize(
    ("x", "weight", "settings"),
    [
        pytest.param((8, 4, 9, 9), (4, 1, 3, 3), {"groups": 4}, id="groups"),
        pytest.param((8, 4, 9, 9), (4, 4, 3, 3), {"dilation": 2}, id="dilated"),
        pytest.param((8, 4, 9, 9), (4, 4, 3, 3), {"transposed": True}, id="transposed"),
        pytest.param((8, 4, 9, 9), (4, 4, 3, 3), {"dtype": torch.float64}, id="double"),
        pytest.param((4, 4, 9, 9), (20, 4, 3, 3), {"stride": 2}, id="lanes would idle"),
        pytest.param((4, 4, 9, 9), (20, 4, 1, 1), {}, id="lanes would idle, borders are wider"),
        pytest.param((2, 48, 9, 9), (48, 48, 3, 3), {}, id="channels fill registers of one sample"),
        pytest.param((8, 16, 9, 9), (16, 16, 3, 3), {}, id="channels fill registers"),
        pytest.param((8, 4, 9, 9), (96, 4, 3, 3), {}, id="many filters"),
        pytest.param((8, 4, 256, 256), (4, 4, 3, 3), {}, id="image leaves the cache"),
    ],
)
def test_planes_are_left_to_the_library(x, weight, settings):
    assert not planes(x, weight, **settings)


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        pytest.param((8, 4, 9, 9), (4, 4, 3, 3), id="few channels"),
        pytest.param((4, 4, 9, 9), (20, 4, 3, 3), id="few samples"),
        pytest.param((2, 16, 9, 9), (32, 16, 3, 3), id="channels that fill registers"),
        pytest.param((1, 3, 512, 512), (4, 3, 3, 3), id="large image"),
    ],
)
def test_planes_are_ours(x, weight):
    assert planes(x, weight)


def test_planes_are_contiguous():
    convolution, *_ = forms((8, 4, 9, 9), 4)
    image = convolution.args[0].meta["val"]
    convolution.meta["val"] = image
    assert planes_gain(convolution)
    convolution.args[0].meta["val"] = image.to(memory_format=torch.channels_last)
    assert not planes_gain(convolution)

"""Convolutions of few channels by blocks of threads, run by the host."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from abele.passes.of_lowerings.gpu import gpu_biases
from abele.targets.cuda.emitted import convolutions, lowering
from abele.targets.cuda.emitted.convolutions import Sizes
from abele.targets.cuda.emitted.source import Launch
from abele.targets.reference import Interpreter
from helpers import kernels_on_host
from helpers.emitted_operators import program_of

COMPILED = pytest.mark.compiler
aten = torch.ops.aten
# Samples, channels, results, height, width: less than a block, tails on all sides, several tiles,
# several groups of channels, one number of each.
SHAPES = [
    (2, 3, 5, 7, 9),
    (1, 8, 8, 40, 70),
    pytest.param((2, 9, 17, 19, 33), marks=pytest.mark.thorough),
    (1, 1, 1, 1, 1),
    pytest.param((3, 16, 8, 17, 64), marks=pytest.mark.thorough),
    pytest.param((1, 20, 3, 33, 130), marks=pytest.mark.thorough),
]


def convolved(x, weight, bias):
    return F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2)


def case(shape, size, *, gradients=True, function=convolved):
    samples, channels, results, height, width = shape
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(each, generator=generator)
        for each in (
            (samples, channels, height, width),
            (results, channels, size, size),
            (results,),
        )
    ]
    program = program_of(function, inputs, gradients=gradients)
    return convolutions.apart(gpu_biases(program)), inputs


def computed(program):
    """What blocks compute, and convolutions that torch does."""
    steps = lowering.planned(program).steps
    units = [
        unit.operations[0] for step in steps if isinstance(step, Launch) for unit in step.units
    ]
    torchs = [str(step.target) for step in steps if not isinstance(step, Launch)]
    ours = {each.what for each in units if hasattr(each, "what")}
    return ours, [each for each in torchs if "convolution" in each]


def assert_same(program, inputs, folder):
    low = kernels_on_host.OnHost(folder)
    actual = low.compile(program).run([each.clone() for each in inputs])
    exact = Interpreter().compile(program).run([each.clone() for each in inputs])
    for ours, expected in zip(actual, exact, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5 * expected.abs().max())


@pytest.fixture(autouse=True)
def _all_sizes(monkeypatch):
    monkeypatch.setattr(convolutions, "LEAST_PIXELS", dict.fromkeys((9, 1), ((64, 1),)))


@COMPILED
@pytest.mark.parametrize("pixels", [1, 2])
@pytest.mark.parametrize("size", [3, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_and_gradients_are_those_of_the_interpreter(
    shape, size, pixels, tmp_path, monkeypatch
):
    monkeypatch.setattr(convolutions, "_ENOUGH_BLOCKS", 1 if pixels == 2 else 1 << 30)
    monkeypatch.setattr(convolutions, "_PIXELS_OF_SUMS", 100)
    program, inputs = case(shape, size)
    ours, torchs = computed(program)
    assert {"convolution", ("pointwise_weights", "convolution_weights")[size == 3]} <= ours
    assert torchs == []
    assert_same(program, inputs, tmp_path)


@COMPILED
def test_several_tiles_of_a_block_are_summed(tmp_path, monkeypatch):
    monkeypatch.setattr(convolutions, "_BLOCKS_OF_SUMS", 3)
    program, inputs = case((2, 9, 8, 35, 70), 3)
    assert_same(program, inputs, tmp_path)


@COMPILED
def test_images_and_weights_in_another_order(tmp_path):
    def function(x, weight, bias):
        return convolved(x.transpose(2, 3), weight.flip(0).transpose(2, 3), bias)

    program, inputs = case((2, 3, 5, 18, 9), 3, function=function)
    assert computed(program)[1] == []
    assert_same(program, inputs, tmp_path)


@pytest.mark.parametrize(
    "settings",
    [{"stride": 2}, {"dilation": 2}, {"padding": 0}, {"padding": (1, 0)}, {"groups": 2}],
    ids=str,
)
def test_other_convolutions_are_torchs(settings):
    channels = 2 if "groups" in settings else 4

    def function(x, weight):
        return F.conv2d(x, weight, **{"padding": 1, **settings})

    inputs = torch.randn(2, 4, 9, 9), torch.randn(6, channels, 3, 3)
    program = convolutions.apart(gpu_biases(program_of(function, inputs, gradients=True)))
    ours, torchs = computed(program)
    assert not {"convolution", "convolution_weights"} & ours
    assert sorted(torchs) == ["aten.convolution.default", "aten.convolution_backward.default"]


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w: F.conv2d(x, w, padding=2), [(2, 4, 9, 9), (6, 4, 5, 5)]),
        (lambda x, w: F.conv1d(x, w, padding=1), [(2, 4, 9), (6, 4, 3)]),
        (lambda x, w: F.conv_transpose2d(x, w, padding=1), [(2, 4, 9, 9), (4, 6, 3, 3)]),
        (lambda x, w: F.conv2d(x, w, padding=1), [(2, 90, 9, 9), (70, 90, 3, 3)]),
    ],
    ids=["5 x 5", "one dimension", "transposed", "many channels"],
)
def test_convolutions_of_other_kinds_are_torchs(function, shapes):
    inputs = [torch.randn(shape) for shape in shapes]
    program = convolutions.apart(gpu_biases(program_of(function, inputs, gradients=True)))
    assert not {"convolution", "convolution_weights"} & computed(program)[0]


def test_channels_that_lie_side_by_side_are_torchs():
    def function(x, weight):
        return F.conv2d(x.contiguous(memory_format=torch.channels_last), weight, padding=1)

    inputs = torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3)
    program = convolutions.apart(gpu_biases(program_of(function, inputs, gradients=True)))
    ours, torchs = computed(program)
    assert not {"convolution", "convolution_weights"} & ours
    assert len(torchs) == 2


def test_double_and_half_numbers_are_torchs():
    for dtype in (torch.float64, torch.float16):
        inputs = torch.randn(2, 4, 9, 9, dtype=dtype), torch.randn(6, 4, 3, 3, dtype=dtype)
        program = program_of(lambda x, w: F.conv2d(x, w, padding=1), inputs, gradients=False)
        assert "convolution" not in computed(program)[0]


@COMPILED
def test_of_two_gradients_one_may_be_torchs(tmp_path, monkeypatch):
    limits = {9: ((4, 1),), 1: ((64, 1),)}
    monkeypatch.setattr(convolutions, "LEAST_PIXELS", limits)
    program, inputs = case((2, 4, 8, 9, 20), 3)
    ours, torchs = computed(program)
    assert {"convolution", "convolution_weights"} <= ours  # the former forward
    assert torchs == ["aten.convolution_backward.default"]
    masks = [
        node.args[-1]
        for node in program.graph.graph.nodes
        if node.target is aten.convolution_backward.default
    ]
    assert sorted(masks) == [[False, True, False], [True, False, False]]
    assert_same(program, inputs, tmp_path)


def test_gradients_that_are_both_ours_or_both_torchs_stay_together(monkeypatch):
    for limits in ((), ((64, 1),)):
        monkeypatch.setattr(convolutions, "LEAST_PIXELS", {9: limits, 1: limits})
        most = {9: 64, 1: 64} if limits else {9: 0, 1: 0}
        monkeypatch.setattr(convolutions, "MOST_CHANNELS_OF_WEIGHTS", most)
        program, _ = case((2, 4, 8, 9, 20), 3)
        targets = [node.target for node in program.graph.graph.nodes]
        assert targets.count(aten.convolution_backward.default) == 1


@pytest.mark.parametrize(
    ("sizes", "result", "weights"),
    [
        (Sizes(2, 8, 8, 320, 512, 9), True, True),
        (Sizes(2, 24, 24, 80, 128, 9), True, True),
        (Sizes(2, 32, 32, 40, 64, 9), False, True),
        (Sizes(2, 64, 64, 64, 64, 9), False, False),
        (Sizes(32, 64, 64, 32, 32, 9), True, False),
        (Sizes(2, 48, 40, 20, 32, 1), True, True),
        (Sizes(2, 168, 256, 5, 8, 1), False, False),
    ],
)
def test_what_was_measured_to_be_faster_is_computed_here(sizes, result, weights, monkeypatch):
    monkeypatch.undo()
    assert (sizes.is_ours(), sizes.weights_are_ours()) == (result, weights)


@COMPILED
@pytest.mark.parametrize(
    "shape", [(2, 5, 7, 9), (3, 2, 90, 100), (2, 6, 40), (1, 3, 4, 5, 6)], ids=str
)
def test_channels_are_summed(shape, tmp_path):
    x = torch.randn(shape)
    dims = [d for d in range(len(shape)) if d != 1]
    program = program_of(lambda x: x.sum(dims), [x], gradients=False)
    assert "channel_sums" in computed(program)[0]
    assert_same(program, [x], tmp_path)

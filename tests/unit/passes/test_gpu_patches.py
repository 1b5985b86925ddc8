"""Convolutions of small images as GEMMs of patches."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from abele.passes.of_lowerings import gpu as passes
from abele.passes.of_lowerings.gpu import gpu_biases, gpu_patches
from abele.targets.reference import Interpreter
from helpers.emitted_operators import program_of

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _few_are_enough(monkeypatch):
    monkeypatch.setattr(passes, "LEAST_SUMMED", 1)


def case(shape=(2, 3, 7, 9), results=5, taps=(5, 5), **settings):
    settings = {"padding": (taps[0] // 2, taps[1] // 2), **settings}
    inputs = [torch.randn(shape), torch.randn(results, shape[1], *taps), torch.randn(results)]

    def function(x, weight, bias):
        return F.conv2d(x, weight, bias, **settings)

    return gpu_biases(program_of(function, inputs, gradients=True)), inputs


def convolutions(program):
    targets = (node.target for node in program.graph.graph.nodes)
    return [each for each in targets if "convolution" in str(each)]


@pytest.mark.parametrize(
    ("shape", "results", "taps"),
    [((2, 3, 7, 9), 5, (5, 5)), ((1, 8, 4, 7), 8, (3, 3)), ((3, 4, 5, 2), 6, (3, 5))],
    ids=str,
)
def test_results_are_products_of_patches(shape, results, taps):
    program, inputs = case(shape, results, taps)
    changed = gpu_patches(program)
    changed.verify()
    assert convolutions(changed) == [aten.convolution_backward.default]
    targets = [node.target for node in changed.graph.graph.nodes]
    assert targets.count(aten.mm.default) == 1
    values = [Interpreter().compile(each).run(list(inputs)) for each in (program, changed)]
    torch.testing.assert_close(*values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"stride": 2},
        {"padding": 0},
        {"padding": 1},
        {"dilation": 2},
        {"taps": (1, 1)},
        {"taps": (4, 4)},
        {"shape": (4, 3, 20, 20)},
    ],
    ids=str,
)
def test_other_convolutions_stay(settings):
    program, _ = case(**settings)
    assert gpu_patches(program) is program
    assert len(convolutions(program)) == 2


def test_few_channels_stay(monkeypatch):
    monkeypatch.setattr(passes, "LEAST_SUMMED", 76)  # the input has 75
    program, _ = case()
    assert gpu_patches(program) is program


def test_channels_that_lie_side_by_side_stay():
    def function(x, weight):
        return F.conv2d(x.contiguous(memory_format=torch.channels_last), weight, padding=2)

    inputs = torch.randn(2, 3, 7, 9), torch.randn(5, 3, 5, 5)
    program = program_of(function, inputs, gradients=False)
    assert gpu_patches(program) is program

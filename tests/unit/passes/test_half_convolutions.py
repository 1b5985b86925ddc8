"""Convolutions of half numbers are computed in float32 where torch would leave them to oneDNN."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from abele import passes
from abele.passes.of_lowerings import convolutions as module
from abele.passes.of_lowerings.convolutions import half_convolutions
from abele.targets.cpu import TARGET as CPU
from abele.targets.reference import Interpreter, Reference
from helpers.runs import captured, rule_for, run, run_eagerly, started

aten = torch.ops.aten
CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)


class Lowered(Interpreter):
    passes = (half_convolutions,)


class Here(Reference):
    lowerings = (Lowered(),)


class Net(nn.Module):
    """A convolution of a kind behind a linear map of channels, so that images need a gradient."""

    def __init__(self, layer):
        super().__init__()
        dimensions = layer.weight.dim() - 2
        first = nn.Conv1d if dimensions == 1 else nn.Conv2d
        self.layers = nn.Sequential(first(3, 4, 1), layer)

    def forward(self, images, wanted):
        return nn.functional.mse_loss(self.layers(images).flatten(1).mean(1), wanted)


LAYERS = {
    "plain": lambda: nn.Conv2d(4, 5, 3),
    "strided, without bias": lambda: nn.Conv2d(4, 6, 3, 2, 1, bias=False),
    "dilated": lambda: nn.Conv2d(4, 5, 3, padding=2, dilation=2),
    "of each channel": lambda: nn.Conv2d(4, 8, 3, padding=1, groups=4),
    "transposed": lambda: nn.ConvTranspose2d(4, 5, 2, 2),
    "of rows": lambda: nn.Conv1d(4, 5, 3),
}


@pytest.fixture(autouse=True)
def _oneDNN_would_compute_them(monkeypatch):
    monkeypatch.setattr(module, "is_faster", lambda: True)


def net(kind):
    torch.manual_seed(0)
    return Net(LAYERS[kind]())


def batches(kind, dtype, count=2):
    generator = torch.Generator().manual_seed(1)
    edges = (9,) if kind == "of rows" else (7, 9)
    made = [
        (torch.randn(4, 3, *edges, generator=generator), torch.randn(4, generator=generator))
        for _ in range(count)
    ]
    return [tuple(each.half().to(dtype) for each in batch) for batch in made]


def types_of_convolutions(program):
    nodes = [node for node in program.graph.graph.nodes if node.target in CONVOLUTIONS]
    return [node.args[0].meta["val"].dtype for node in nodes]


def distance(trained, exact):
    """How far updated weights are from those of float64, of what an update changes."""
    values = [trained.params[name].double() - value for name, value in exact.params.items()]
    return torch.cat([each.flatten() for each in values]).norm()


@pytest.mark.parametrize("kind", LAYERS)
def test_a_step_is_no_further_from_float64_than_plain_pytorchs(kind):
    def eagerly(dtype):
        model = net(kind).half().to(dtype)
        return run_eagerly(model, torch.optim.SGD(model.parameters(), lr=0.5), batches(kind, dtype))

    data, model = batches(kind, torch.float16), net(kind).half()
    rule = rule_for(model, "sgd", lr=0.5, momentum=0.0)
    ours = run(started(model, data[0], rule, target=Here())[0], data)
    exact = eagerly(torch.float64)
    assert all(each.dtype is torch.float16 for each in ours.params.values())
    assert distance(ours, exact) <= 1.05 * distance(eagerly(torch.float16), exact) + 1e-4


@pytest.mark.parametrize("kind", LAYERS)
def test_no_convolution_of_half_numbers_is_left(kind):
    model = net(kind).half()
    rule = rule_for(model, "sgd")
    before = passes.run(captured(model, batches(kind, torch.float16)[0], rule=rule).programs[0])
    assert types_of_convolutions(before) == [torch.float16] * 4
    after = half_convolutions(before)
    after.verify()
    assert types_of_convolutions(after) == [torch.float32] * 4


def test_inference_in_half():
    kind = "plain"
    data, model = batches(kind, torch.float16), net(kind).half().eval()
    ours = run(started(model, data[0], target=Here())[0], data).outputs
    exact = [model.float()(*each) for each in batches(kind, torch.float32)]
    for (value,), expected in zip(ours, exact, strict=True):
        assert value.dtype is torch.float16
        torch.testing.assert_close(value.float(), expected, rtol=4e-3, atol=4e-3)


def test_other_types_and_processors_keep_their_convolutions(monkeypatch):
    model = net("plain")
    before = passes.run(captured(model, batches("plain", torch.float32)[0]).programs[0])
    assert half_convolutions(before) is before
    monkeypatch.setattr(module, "is_faster", lambda: False)
    in_half = passes.run(captured(model.half(), batches("plain", torch.float16)[0]).programs[0])
    assert half_convolutions(in_half) is in_half


@pytest.mark.parametrize("name", ["op_by_op", "emitted"])
def test_lowerings_that_prepare_programs_have_it(name):
    assert half_convolutions in CPU.lowering(name).passes

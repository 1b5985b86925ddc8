"""Which convolutions go to our kernel of few channels, and what the operators mean."""

from __future__ import annotations

import pytest
import torch

from abele._torch import make_fx
from abele.ops import few_channel_conv
from abele.program import Program, Role, Slot
from abele.targets.cpu.emitted.calls.convolutions import few_channel_convolutions

aten = torch.ops.aten


def program_of(function, *inputs: torch.Tensor) -> Program:
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    outputs = next(node for node in graph.graph.nodes if node.op == "output").args[0]

    def slots(values, role):
        return tuple(
            Slot(name=f"{role}{i}", role=role, shape=tuple(value.shape), dtype=value.dtype)
            for i, value in enumerate(values)
        )

    output = [node.meta["val"] for node in outputs]
    return Program(
        name="forward",
        graph=graph,
        inputs=slots(inputs, Role.INPUT),
        outputs=slots(output, Role.OUTPUT),
    ).verify()


def targets(program: Program) -> set:
    return {node.target for node in program.graph.graph.nodes if node.op == "call_function"}


def convolve(*, dilation=1, groups=1, transposed=False, stride=1):
    def function(x, weight):
        both = [dilation, dilation]
        result = aten.convolution(
            x, weight, None, [stride] * 2, [1, 1], both, transposed, [0, 0], groups
        )
        return [result]

    return function


def test_replaces_forward_and_backward():
    def function(x, weight, bias, grad):
        y = aten.convolution(x, weight, bias, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        _, weight_grad, bias_grad = aten.convolution_backward(
            grad, x, weight, [5], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, True]
        )
        return [y, weight_grad, bias_grad]

    inputs = torch.randn(16, 1, 9, 9), torch.randn(5, 1, 3, 3), torch.randn(5)
    inputs = (*inputs, torch.randn(16, 5, 7, 7))
    before = program_of(function, *inputs)
    after = few_channel_convolutions(before).verify()
    assert {few_channel_conv.forward, few_channel_conv.backward} <= targets(after)
    assert not {aten.convolution.default, aten.convolution_backward.default} & targets(after)
    for actual, expected in zip(after.graph(*inputs), before.graph(*inputs), strict=True):
        assert torch.equal(actual, expected)


def test_keeps_what_is_known_about_a_node():
    before = program_of(convolve(), torch.randn(8, 3, 9, 9), torch.randn(4, 3, 3, 3))
    old = next(n for n in before.graph.graph.nodes if n.target is aten.convolution.default)
    old.meta |= {"stack_trace": 'File "model.py", line 3, in forward', "custom": {"phase": "x"}}
    after = few_channel_convolutions(before)
    new = next(n for n in after.graph.graph.nodes if n.target is few_channel_conv.forward)
    for key in ("val", "stack_trace", "custom"):
        assert new.meta[key] is old.meta[key] or new.meta[key] == old.meta[key]


@pytest.mark.parametrize(
    ("x", "weight", "options"),
    [
        pytest.param((8, 4, 9, 9), (4, 1, 3, 3), {"groups": 4}, id="groups"),
        pytest.param((8, 4, 9, 9), (4, 4, 3, 3), {"dilation": 2}, id="dilated"),
        pytest.param((8, 4, 9, 9), (4, 4, 3, 3), {"transposed": True}, id="transposed"),
        pytest.param((4, 4, 9, 9), (20, 4, 3, 3), {"stride": 2}, id="lanes would idle"),
        pytest.param((4, 4, 9, 9), (20, 4, 1, 1), {}, id="lanes would idle, borders are wider"),
        pytest.param((2, 48, 9, 9), (48, 48, 3, 3), {}, id="channels fill registers of one sample"),
        pytest.param((8, 16, 9, 9), (16, 16, 3, 3), {}, id="channels fill registers"),
        pytest.param((8, 4, 9, 9), (96, 4, 3, 3), {}, id="many filters"),
        pytest.param((8, 4, 256, 256), (4, 4, 3, 3), {}, id="image leaves the cache"),
    ],
)
def test_leaves_to_the_library(x, weight, options):
    program = program_of(convolve(**options), torch.empty(x), torch.empty(weight))
    assert targets(few_channel_convolutions(program)) == {aten.convolution.default}


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        pytest.param((4, 4, 9, 9), (20, 4, 3, 3), id="few samples"),
        pytest.param((2, 16, 9, 9), (32, 16, 3, 3), id="channels that fill registers"),
        pytest.param((1, 3, 512, 512), (4, 3, 3, 3), id="large image"),
    ],
)
def test_takes_few_samples_one_by_one(x, weight):
    program = program_of(convolve(), torch.empty(x), torch.empty(weight))
    assert targets(few_channel_convolutions(program)) == {few_channel_conv.forward}


def test_leaves_other_dtypes_and_layouts_to_the_library():
    x, weight = torch.randn(8, 4, 9, 9), torch.randn(4, 4, 3, 3)
    double = program_of(convolve(), x.double(), weight.double())
    last = program_of(convolve(), x.to(memory_format=torch.channels_last), weight)
    for program in (double, last):
        assert targets(few_channel_convolutions(program)) == {aten.convolution.default}


@pytest.mark.parametrize("mask", [[True] * 3, [False, True, True], [True, False, False]])
def test_operators_mean_what_aten_means(mask):
    x, weight, bias = torch.randn(3, 2, 8, 7), torch.randn(4, 2, 3, 2), torch.randn(4)
    y = few_channel_conv.forward(x, weight, bias, [2, 1], [1, 0])
    rest = [2, 1], [1, 0], [1, 1], False, [0, 0], 1
    assert torch.equal(y, aten.convolution(x, weight, bias, *rest))
    grad = torch.randn_like(y)
    actual = few_channel_conv.backward(grad, x, weight, [2, 1], [1, 0], mask)
    expected = aten.convolution_backward(grad, x, weight, [4], *rest, mask)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours is theirs is None or torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (few_channel_conv.forward, ([2, 1], [1, 0])),
        (few_channel_conv.backward, ([2, 1], [1, 0], [True] * 3)),
    ],
)
def test_fake_results_have_the_real_shapes(operator, arguments):
    x, weight = torch.randn(3, 2, 8, 7), torch.randn(4, 2, 3, 2)
    tensors = {
        few_channel_conv.forward: (x, weight, None),
        few_channel_conv.backward: (torch.randn(3, 4, 4, 6), x, weight),
    }[operator]
    torch.library.opcheck(operator, (*tensors, *arguments), test_utils="test_faketensor")

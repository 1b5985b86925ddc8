"""Passes of the lowering ``op_by_op`` keep what a step means; plain implementations run them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from abele import passes
from abele.capture import capture
from abele.ops import memory_layout, norm_activation
from abele.passes.of_lowerings.channels_last import channels_last
from abele.passes.of_lowerings.normalisation import fused_normalisation
from abele.step.config import StepConfig
from abele.targets.cpu import TARGET as CPU
from abele.targets.cpu.op_by_op import choice
from abele.targets.reference import Interpreter, Reference
from helpers.planes import WITHOUT_GRADIENT, events, planes
from helpers.runs import assert_close_by_norm, captured, flat, rule_for, run, run_eagerly, started

aten = torch.ops.aten
OP_BY_OP = CPU.lowering("op_by_op")


def lowered_by(*those):
    class Lowered(Interpreter):
        passes = those

    class Here(Reference):
        lowerings = (Lowered(),)

    return Here()


def targets(program) -> list:
    return [node.target for node in program.graph.graph.nodes if node.op == "call_function"]


def step_of(slope=0.01, kind="sgd", **values):
    model = planes(slope)
    rule = rule_for(model, kind, variable=("lr",), **values)
    return passes.run(captured(model, events(1)[0], rule=rule).programs[0])


def forward_of(model, *inputs):
    output = capture(lambda x: flat(model(*x)), model, inputs, StepConfig(training=False))
    return passes.run(output.programs[0])


@pytest.mark.parametrize("slope", [0.01, 0.0], ids=["leaky", "relu"])
@pytest.mark.parametrize(
    "those",
    [
        (fused_normalisation,),
        (channels_last,),
        (fused_normalisation, channels_last),
    ],
    ids=lambda those: "+".join(each.__name__ for each in those),
)
def test_a_lowered_step_trains_alike(slope, those):
    model, batches = planes(slope), events(2)
    rule = rule_for(model, "sgd", variable=("lr",))
    plain = run(started(model, batches[0], rule)[0], batches)
    program = run(started(model, batches[0], rule, target=lowered_by(*those))[0], batches)
    assert_close_by_norm(program, plain, 3e-4, without=WITHOUT_GRADIENT)


def test_every_norm_is_joined_with_its_activation_both_ways():
    before = step_of()
    after = fused_normalisation(before).verify()
    assert targets(after).count(norm_activation.forward) == 8
    assert targets(after).count(norm_activation.backward) == 8
    gone = {
        aten._native_batch_norm_legit_functional.default,
        aten.native_batch_norm_backward.default,
    }
    gone |= {aten.leaky_relu.default, aten.leaky_relu_backward.default}
    assert not gone & set(targets(after))


def test_a_bias_before_a_norm_gets_no_gradient_computed():
    after = fused_normalisation(step_of())
    masks = [
        node.args[10]
        for node in after.graph.graph.nodes
        if node.target is aten.convolution_backward.default
    ]
    assert sorted(mask[2] for mask in masks) == [False] * 8 + [True] * 2


def test_zero_gradients_of_a_layer_used_twice_are_not_added():
    program = step_of()

    def sums(each):
        return targets(each).count(aten.add.Tensor)

    # Of each of the four layers before a norm, the two planes' gradients of the bias.
    assert sums(fused_normalisation(program)) == sums(program) - 4


def test_a_norm_whose_result_is_read_twice_keeps_its_activation_apart():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x):
            y = self.norm(x)
            return y, nn.functional.mse_loss(torch.relu(y), x)

    model, x = Twice(), torch.randn(2, 3, 4, 4)
    rule = rule_for(model, "sgd")
    plain = run(started(model, [x], rule)[0], [[x]])
    session, _ = started(model, [x], rule, target=lowered_by(fused_normalisation))
    output = run(session, [[x]])
    assert aten.relu.default in targets(session.executable.programs[0])
    assert_close_by_norm(output, plain, 1e-5)


def test_norms_in_half_stay():
    images, *others = events(1)[0]
    before = forward_of(planes().half(), images.half(), *others)
    assert targets(fused_normalisation(before)) == targets(before)


def test_images_are_converted_only_where_parts_meet():
    program = step_of()
    for each in (fused_normalisation, channels_last):
        program = each(program).verify()
    converted = [n for n in program.graph.graph.nodes if n.target is memory_layout.in_layout]
    convolutions = targets(program).count(aten.convolution.default)
    assert 0 < len(converted) < 4 * convolutions
    assert not any(n.args[0].target is memory_layout.in_layout for n in converted)


class Forked(nn.Module):
    """Joins channels, so that backward cuts them; all convolutions are our kernels'."""

    def __init__(self, channels=16):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.left = nn.Conv2d(channels, channels, 3, padding=1)
        self.last = nn.Conv2d(2 * channels, channels, 3, padding=1)

    def forward(self, x):
        x = self.first(x).relu()
        y = self.last(torch.cat([x, self.left(x)], dim=1))
        return nn.functional.mse_loss(y, torch.zeros_like(y))


def step_of_forked():
    model = Forked()
    x = torch.randn(2, 16, 8, 8)
    return passes.run(captured(model, (x,), rule=rule_for(model, "sgd")).programs[0])


def test_our_convolutions_convert_neither_cut_channels_nor_gradients_of_weights(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    program = channels_last(step_of_forked()).verify()
    assert targets(program).count(aten.slice.Tensor) == 2
    converted = [n for n in program.graph.graph.nodes if n.target is memory_layout.in_layout]
    # The image, and the result of the last convolution and its gradient, which the loss reads.
    assert [tuple(n.meta["val"].shape) for n in converted] == [(2, 16, 8, 8)] * 3
    assert aten.slice.Tensor not in [node.args[0].target for node in converted]


def test_networks_of_our_convolutions_run_operator_by_operator(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    program = step_of_forked()
    assert choice.why(program) is None  # too few, and too small
    monkeypatch.setattr(choice, "LEAST_CONVOLUTIONS", 3)
    assert choice.why(program) is None
    monkeypatch.setattr(choice, "LEAST_WORK", 2 * 8 * 8 * 16 * 16 * 9)
    assert choice.why(program) == (
        "3 convolutions of large images, or of 3x3 that our kernels compute, do 100 % of its "
        "multiply-adds, and nothing needs compiling"
    )


def test_outputs_lie_in_the_default_order():
    session, _ = started(planes().eval(), events(1)[0], target=lowered_by(*OP_BY_OP.passes))
    assert all(value.is_contiguous() for value in session.step(events(1)[0]))


def test_only_networks_of_large_convolutions_run_operator_by_operator(monkeypatch):
    program = step_of()
    assert CPU.choose(program)[0] is not OP_BY_OP
    monkeypatch.setattr(choice, "LARGE_IMAGE", 1024)
    lowering, reason = CPU.choose(program)
    assert lowering is OP_BY_OP
    assert "convolutions of large images" in reason


def test_networks_of_many_convolutions_with_norms_run_operator_by_operator(monkeypatch):
    program = step_of()
    nodes = program.graph.graph.nodes
    count = sum(node.target is aten.convolution.default for node in nodes)
    monkeypatch.setattr(choice, "MANY_CONVOLUTIONS", count)
    assert choice.why(program) is None  # too small
    monkeypatch.setattr(choice, "MEAN_WORK", 1)
    lowering, reason = CPU.choose(program)
    assert lowering is OP_BY_OP
    assert reason == f"compiling its {count} convolutions takes long and gains nothing"
    monkeypatch.setattr(choice, "MANY_CONVOLUTIONS", count + 1)
    assert choice.why(program) is None


class Separable(nn.Module):
    """Depthwise convolutions, and some of 1x1."""

    def __init__(self):
        super().__init__()
        pairs = [(nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.Conv2d(16, 16, 1)) for _ in range(4)]
        self.layers = nn.Sequential(*(each for pair in pairs for each in pair))

    def forward(self, x):
        return self.layers(x).square().mean()


def test_separable_convolutions_of_large_images_are_compiled(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(choice, "LARGE_IMAGE", 1024)
    program = passes.run(captured(Separable(), (torch.randn(2, 16, 16, 16),)).programs[0])
    assert choice.why(program) is None
    monkeypatch.setattr(
        choice, "is_product_or_depthwise", lambda _: False
    )  # then the library computes them
    assert (choice.why(program) or "").startswith("8 convolutions of large images")


class Bottlenecks(nn.Module):
    """Convolutions of 3x3 between larger ones of 1x1, which compiled code computes as well."""

    def __init__(self):
        super().__init__()
        triples = (
            (nn.Conv2d(96, 16, 1), nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 96, 1))
            for _ in range(3)
        )
        self.layers = nn.Sequential(*(each for triple in triples for each in triple))

    def forward(self, x):
        return self.layers(x).square().mean()


def test_only_what_compiled_code_leaves_to_the_library_decides(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(choice, "LEAST_CONVOLUTIONS", 3)
    monkeypatch.setattr(choice, "LEAST_WORK", 1)
    program = passes.run(captured(Bottlenecks(), (torch.randn(2, 96, 8, 8),)).programs[0])
    assert (choice.why(program) or "").startswith("3 convolutions of")
    monkeypatch.setattr(choice, "is_product_or_depthwise", lambda _: False)
    assert choice.why(program) is None


def test_the_plain_network_agrees_with_itself_in_eager():
    model, batches = planes(), events(2)
    eager = copy.deepcopy(model)
    plain = run(started(model, batches[0], rule_for(model, "sgd"))[0], batches)
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.05, momentum=0.9)
    assert_close_by_norm(plain, run_eagerly(eager, optimizer, batches), 1e-6)

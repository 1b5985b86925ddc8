"""Passes of the lowering ``op_by_op`` keep what a step means; plain implementations run them."""

import dataclasses
import operator

import pytest
import torch
from torch import nn

from abele import passes
from abele.capture import capture
from abele.ops import memory_layout, norm_activation
from abele.ops.fused_updates import adam, sgd
from abele.passes.of_lowerings.channels_last import channels_last
from abele.passes.of_lowerings.convolutions import pointwise_before_upsampling
from abele.passes.of_lowerings.fused_sums import fused_sums
from abele.passes.of_lowerings.fused_updates import fused_adam, fused_sgd
from abele.passes.of_lowerings.half import computed_in_float32
from abele.passes.of_lowerings.normalisation import folded_normalisation, fused_normalisation
from abele.step.config import StepConfig
from abele.step.update_rules import Group
from abele.targets.cpu import TARGET as CPU
from abele.targets.cpu.op_by_op import choice, updates
from abele.targets.reference import Interpreter, Reference
from helpers.planes import WITHOUT_GRADIENT, events, planes
from helpers.runs import assert_close_by_norm, captured, flat, rule_for, run, started

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


_EACH = fused_normalisation, pointwise_before_upsampling, channels_last


@pytest.mark.parametrize(
    ("slope", "those"),
    [*((0.01, (each,)) for each in _EACH), (0.01, _EACH), (0.0, _EACH)],
    ids=["normalisation", "pointwise", "channels", "all", "all of relu"],
)
def test_a_lowered_step_trains_alike(slope, those):
    model, batches = planes(slope), events(2)
    rule = rule_for(model, "sgd", variable=("lr",))
    plain = run(started(model, batches[0], rule)[0], batches)
    program = run(started(model, batches[0], rule, target=lowered_by(*those))[0], batches)
    assert_close_by_norm(program, plain, 3e-4, without=WITHOUT_GRADIENT)


def test_fused_adam_computes_the_rule():
    decay = {"weight_decay": 0.1, "decoupled": True}
    every = ("lr", "beta1", "beta2", "eps")
    for settings, variable in (
        ({}, ("lr",)),
        (decay, ("lr",)),
        ({}, every),
        (decay, (*every, "weight_decay")),
    ):
        model, batches = planes(), events(3)
        rule = rule_for(model, "adam", variable=variable, **settings)
        plain = run(started(model, batches[0], rule)[0], batches)
        session, _ = started(model, batches[0], rule, target=lowered_by(fused_adam))
        assert targets(session.executable.programs[0]).count(adam) == 1
        assert_close_by_norm(run(session, batches), plain, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fused_adam_divides_and_rounds_16_bits_itself(dtype):
    model = planes().to(dtype)
    batches = [[image.to(dtype), labels] for image, labels in events(2)]
    rule = dataclasses.replace(rule_for(model, "adam", variable=("lr",)), loss_scaling=8.0)
    apart = started(model, batches[0], rule, target=lowered_by(computed_in_float32))[0]
    session, _ = started(
        model, batches[0], rule, target=lowered_by(computed_in_float32, fused_adam)
    )
    nodes = session.executable.programs[0].graph.graph.nodes
    [update] = [node for node in nodes if node.target is adam]
    assert {each.meta["val"].dtype for column in update.args[:2] for each in column} == {dtype}
    assert_close_by_norm(run(session, batches), run(apart, batches), 1e-4)


def test_an_adam_that_is_another_one_stays():
    for settings in ({"weight_decay": 0.1}, {"bias_correction": 0.0}):
        variable = ("lr",)
        model = planes()
        rule = rule_for(model, "adam", variable=variable, **settings)
        before = passes.run(captured(model, events(1)[0], rule=rule).programs[0])
        after = fused_adam(before).verify()
        # Coupled decay only changes the gradient; without corrections it is another computation.
        assert (adam in targets(after)) is ("weight_decay" in settings)


_SLOTS = ("lr", "momentum", "dampening", "weight_decay")


@pytest.mark.parametrize("variable", [(), ("lr",), _SLOTS], ids=["constants", "rate", "slots"])
@pytest.mark.parametrize("nesterov", [0, 1])
def test_fused_sgd_computes_the_rule(nesterov, variable):
    decay = 0.1 * (nesterov != (variable == ("lr",)))  # every pair of values
    model, batches = planes(), events(3)
    values = {"momentum": 0.9, "dampening": 0.2, "weight_decay": decay, "nesterov": nesterov}
    rule = rule_for(model, "sgd", variable=variable, **values)
    plain = run(started(model, batches[0], rule)[0], batches)
    session, _ = started(model, batches[0], rule, target=lowered_by(fused_sgd))
    assert targets(session.executable.programs[0]).count(sgd) == 1
    assert_close_by_norm(run(session, batches), plain, 1e-6)


class Linears(nn.Sequential):
    """Two layers and a loss."""

    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x):
        return nn.functional.mse_loss(super().forward(x), x)


def test_sgd_of_two_groups_has_a_call_for_each():
    model = Linears()
    rule = rule_for(model, "sgd", momentum=0.9)
    first, second = rule.groups[0].params[:2], rule.groups[0].params[2:]
    values = rule.groups[0].values
    groups = (
        Group(params=first, values=values),
        Group(params=second, values={**values, "weight_decay": 0.1}),
    )
    rule = dataclasses.replace(rule, groups=groups)
    program = passes.run(captured(model, (torch.ones(2, 4),), rule=rule).programs[0])
    assert targets(fused_sgd(program).verify()).count(sgd) == 2


@pytest.mark.parametrize(("values", "dtype"), [({"momentum": 0.0}, None), ({}, torch.half)])
def test_an_sgd_that_is_another_one_stays(values, dtype):
    model = Linears().to(dtype)
    rule = rule_for(model, "sgd", **{"momentum": 0.9, **values})
    step = captured(model, (torch.ones(2, 4, dtype=dtype),), rule=rule).programs[0]
    assert sgd not in targets(fused_sgd(passes.run(step)).verify())


class Pulled(torch.autograd.Function):
    """Gives its second argument a gradient that reads like a velocity."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x + 0 * weight

    @staticmethod
    def backward(ctx, grad):
        (weight,) = ctx.saved_tensors
        return grad, weight * 0.5 + grad


def test_a_gradient_that_looks_like_momentum_is_none():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return nn.functional.mse_loss(Pulled.apply(x, self.weight), x)

    model = Model()
    rule = rule_for(model, "sgd", momentum=0.0)
    program = passes.run(captured(model, (torch.ones(4),), rule=rule).programs[0])
    assert sgd not in targets(fused_sgd(program).verify())


def updated(gradient, read=None):
    """A graph that updates two parameters; ``gradient`` makes one's, ``read`` reads after it."""
    graph = torch.fx.Graph()
    p, q, grad, v, w = (graph.placeholder(name) for name in ("p", "q", "grad", "v", "w"))
    made = gradient(graph, q, grad)
    seen = [] if read is None else [read(graph, q)]
    node = graph.call_function(sgd, ([p, q], [made, grad], [v, w], *[0.0] * 5))
    for index, each in enumerate((p, q, v, w)):
        result = graph.call_function(operator.getitem, (node, index))
        graph.call_function(aten.copy_.default, (each, result))
    seen = [graph.call_function(aten.relu.default, (each,)) for each in seen]
    graph.output(seen)
    return node


def test_an_update_is_written_over_its_arguments():
    copies = updates.copies_back(updated(lambda graph, q, grad: grad))
    assert [str(each.args[0]) for each in copies] == ["p", "q", "v", "w"]


def _view(graph, q, *_):
    return graph.call_function(aten.view.default, (q, [4]))


@pytest.mark.parametrize("gradient", [lambda graph, q, grad: q, _view], ids=["parameter", "view"])
def test_a_gradient_that_is_another_parameter_is_read_before_it_changes(gradient):
    assert updates.copies_back(updated(gradient)) is None


def test_a_view_of_a_parameter_is_read_before_it_changes():
    assert updates.copies_back(updated(lambda graph, q, grad: grad, read=_view)) is None


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


class Residual(nn.Module):
    """Two blocks around which their input is added; the second's input meets two gradients."""

    def __init__(self, activation):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.activation = activation

    def forward(self, x):
        x = self.first(x)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = self.activation(norm(convolution(x)) + x)
        return nn.functional.mse_loss(x, torch.zeros_like(x))


@pytest.mark.parametrize(
    "activation",
    [nn.LeakyReLU(0.1), nn.ReLU(), nn.LeakyReLU(-0.1), nn.Tanh()],
    ids=["leaky", "relu", "negative", "tanh"],
)
def test_sums_of_residual_blocks_are_joined_with_their_norms(activation):
    model, batches = Residual(activation), [(torch.randn(2, 3, 6, 5),) for _ in range(2)]
    rule = rule_for(model, "sgd", variable=("lr",))
    plain = run(started(model, batches[0], rule)[0], batches)
    session, _ = started(
        model, batches[0], rule, target=lowered_by(fused_normalisation, fused_sums)
    )
    now = targets(session.executable.programs[0])
    joins = not isinstance(activation, nn.Tanh) and getattr(activation, "negative_slope", 0) >= 0
    joined = 2 if joins else 0
    assert now.count(norm_activation.of_sum) == now.count(norm_activation.of_sum_backward) == joined
    assert_close_by_norm(
        run(session, batches), plain, 3e-4, without=("convolutions.0.bias", "convolutions.1.bias")
    )


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
    model = planes().half()
    inputs = [events(1)[0][0].half(), events(1)[0][1]]
    before = forward_of(model, *inputs)
    after = folded_normalisation(before)
    assert targets(after) == targets(before)


def test_a_trained_norm_goes_into_its_convolution_or_one_pass():
    model, inputs = planes().eval(), events(1)[0]
    expected = flat(model(*inputs))
    program = folded_normalisation(forward_of(model, *inputs)).verify()
    assert aten._native_batch_norm_legit_no_training.default not in targets(program)
    # The deep convolution has more weights than pixels.
    assert targets(program).count(norm_activation.evaluation) == 2
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    named = {f"input{i}": value for i, value in enumerate(inputs)} | state
    with torch.no_grad():
        result = program.graph(*(named[slot.name] for slot in program.inputs))
    for value, plain in zip(result, expected, strict=True):
        torch.testing.assert_close(value, plain, rtol=1e-5, atol=1e-6)


def test_a_convolution_that_adds_channels_stays_behind_its_upsampling():
    class Growing(nn.Module):
        def __init__(self, outputs, kernel):
            super().__init__()
            self.conv = nn.Conv2d(4, outputs, kernel, padding=kernel // 2)

        def forward(self, x):
            return self.conv(nn.functional.interpolate(x, scale_factor=2, mode="nearest"))

    x = torch.randn(1, 4, 4, 4)
    for outputs, kernel, moved in ((3, 1, True), (5, 1, False), (3, 3, False)):
        program = pointwise_before_upsampling(forward_of(Growing(outputs, kernel), x))
        order = [t for t in targets(program) if t is not aten.clone.default]
        assert (order[0] is aten.convolution.default) is moved


def test_images_are_converted_only_where_parts_meet():
    program = step_of()
    for each in (fused_normalisation, pointwise_before_upsampling, channels_last):
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


def test_a_folded_norm_leaves_relu_to_torch_where_the_library_loses_nan():
    model = nn.Sequential(nn.Conv2d(4, 8, 3, 2, bias=False), nn.BatchNorm2d(8), nn.ReLU()).eval()
    x = torch.randn(1, 4, 33, 33)
    x[0, 1, 4, 4] = torch.nan
    program = folded_normalisation(forward_of(model, x))
    assert targets(program).count(aten.relu.default) == 1
    named = {"input0": x, **dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        (value,) = program.graph(*(named[slot.name] for slot in program.inputs))
        expected = model(x)
    assert expected.isnan().any()
    torch.testing.assert_close(value, expected, equal_nan=True, rtol=1e-4, atol=1e-5)

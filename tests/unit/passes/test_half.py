"""Programs in 16 bits are computed in float32 and stored in 16 bits between far uses."""

import copy

import pytest
import torch
from torch import nn

import poptorch
from abele import passes
from abele.ops import half_products, norm_activation
from abele.passes.of_lowerings.convolutions import patches_as_products
from abele.passes.of_lowerings.fused_sums import fused_sums
from abele.passes.of_lowerings.half import (
    arithmetic,
    biases_in_products,
    computed_in_float32,
    stored_in_16_bits,
    with_bfloat16_images,
)
from abele.passes.of_lowerings.normalisation import fused_normalisation
from abele.program import is_view
from abele.targets.cpu import TARGET as CPU
from abele.targets.cpu.emitted.calls.products import Product
from abele.targets.cpu.emitted.lowering import Emitted, planned_code
from abele.targets.reference import Interpreter, Reference
from abele.targets.translation.places import Kind
from garment_model import ClassificationModel
from helpers.kernel_library import NEEDS_COMPILER
from helpers.runs import assert_close_by_norm, captured, rule_for, run, run_eagerly, started
from helpers.wrapping import options

aten = torch.ops.aten
_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
HALVES = [torch.float16, torch.bfloat16]


def lowered_by(*lowering_passes):
    """A target that interprets programs after these passes."""
    lowering = type("Lowered", (Interpreter,), {"passes": lowering_passes})
    return type("Here", (Reference,), {"lowerings": (lowering(),)})()


HERE = lowered_by(computed_in_float32, stored_in_16_bits)
BY_OPERATOR = lowered_by(with_bfloat16_images, fused_normalisation, fused_sums, stored_in_16_bits)


class Net(nn.Module):
    """A layer behind a linear map of channels, so that images need a gradient, and a sum."""

    def __init__(self, layer):
        super().__init__()
        first = nn.Conv1d if isinstance(layer, nn.Conv1d) else nn.Conv2d
        self.layers = nn.Sequential(first(3, 4, 1), layer)

    def forward(self, images, wanted):
        return nn.functional.mse_loss(self.layers(images).flatten(1).mean(1), wanted)


class Residual(nn.Sequential):
    """Two norms of which the sum goes through an activation."""

    def __init__(self):
        super().__init__(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))

    def forward(self, x):
        return (super().forward(x) + x).relu()


LAYERS = {
    "plain": lambda: nn.Conv2d(4, 5, 3),
    "strided, without bias": lambda: nn.Conv2d(4, 6, 3, 2, 1, bias=False),
    "dilated": lambda: nn.Conv2d(4, 5, 3, padding=2, dilation=2),
    "of each channel": lambda: nn.Conv2d(4, 8, 3, padding=1, groups=4),
    "transposed": lambda: nn.ConvTranspose2d(4, 5, 2, 2),
    "of rows": lambda: nn.Conv1d(4, 5, 3),
    "normalised": lambda: nn.Sequential(nn.BatchNorm2d(4), nn.LeakyReLU(), nn.Conv2d(4, 4, 1)),
    "summed": lambda: Residual(),
    "pooled": lambda: nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1)),
}


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
    return [tuple(each.bfloat16().to(dtype) for each in batch) for batch in made]


def distance(trained, exact):
    """How far updated weights are from those of float64, of what an update changes."""
    values = [trained.params[name].double() - value for name, value in exact.params.items()]
    return torch.cat([each.flatten() for each in values]).norm()


@pytest.fixture(params=[False, True], ids=["float32", "oneDNN"])
def has_products(request, monkeypatch):
    """Whether the processor has instructions for bfloat16; small products are then torch's."""
    monkeypatch.setattr(half_products, "has_bfloat16_products", lambda: request.param)
    monkeypatch.setattr(half_products, "_LEAST_FMAS", 1)
    return request.param


@pytest.mark.parametrize(
    ("dtype", "has_products"),
    [(torch.float16, False), (torch.bfloat16, False), (torch.bfloat16, True)],
    indirect=["has_products"],
)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(
    "target",
    [HERE, BY_OPERATOR, pytest.param("cpu", marks=NEEDS_COMPILER)],
    ids=["code", "by operator", "kernels"],
)
@pytest.mark.usefixtures("has_products")
def test_a_step_is_no_further_from_float64_than_plain_pytorchs(kind, dtype, target, monkeypatch):
    monkeypatch.setattr("abele.passes.of_lowerings.half._LARGE", 1)
    monkeypatch.setattr("abele.passes.of_lowerings.half._NEAR", 1)
    monkeypatch.setenv("ABELE_LOWERING", "op_by_op")

    def eagerly(other):
        model = net(kind).to(dtype).to(other)
        return run_eagerly(model, torch.optim.SGD(model.parameters(), lr=0.5), batches(kind, other))

    data, model = batches(kind, dtype), net(kind).to(dtype)
    rule = rule_for(model, "sgd", lr=0.5, momentum=0.0)
    ours = run(started(model, data[0], rule, target=target)[0], data)
    exact = eagerly(torch.float64)
    assert all(each.dtype is dtype for each in ours.params.values())
    assert distance(ours, exact) <= 1.05 * distance(eagerly(dtype), exact) + 1e-4


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=NEEDS_COMPILER) for each in ("normalised", "summed")]
)
@pytest.mark.parametrize("bad", [1.0, float("nan")])
def test_inference_by_operator_is_no_further_from_float64(kind, bad, monkeypatch):
    monkeypatch.setattr(half_products, "has_bfloat16_products", lambda: True)
    monkeypatch.setattr(half_products, "_LEAST_FMAS", 1)
    monkeypatch.setattr("abele.passes.of_lowerings.half._LARGE", 1)
    monkeypatch.setenv("ABELE_LOWERING", "op_by_op")
    layers, x = net(kind).layers.bfloat16().eval(), batches(kind, torch.bfloat16)[0][0]
    x[0, 0, 0, 0] *= bad
    wrapped = poptorch.inferenceModel(copy.deepcopy(layers), options())
    with torch.no_grad():
        plain, exact = layers(x), copy.deepcopy(layers).double()(x.double())
    ours = wrapped(x)
    assert torch.equal(ours.isnan(), plain.isnan())
    error, own = ((each.double() - exact).nan_to_num().norm() for each in (plain, ours))
    assert own <= 1.05 * error + 1e-4


def step(model, batch):
    return passes.run(captured(model, batch, rule=rule_for(model, "sgd")).programs[0])


@pytest.mark.parametrize("kind", LAYERS)
def test_only_casts_updates_and_views_of_parameters_are_left_in_half(kind):
    after = computed_in_float32(step(net(kind).half(), batches(kind, torch.float16)[0]))
    after.verify()
    for node in after.graph.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and getattr(value, "dtype", None) is torch.float16:
            usual = node.target in (aten._to_copy.default, aten.copy.default, aten.copy_.default)
            assert usual or is_view(node), node.format_node()


class Attention(nn.Module):
    """Layers around attention, of which backward reads transposed gradients."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        parts = self.into(x).unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts)
        result = self.out(seen.transpose(1, 2).flatten(2))
        return nn.functional.mse_loss(result, torch.zeros_like(result))


def types_of(program, *targets):
    """The types of all results of some operators."""
    nodes = [node for node in program.graph.graph.nodes if node.target in targets]
    values = [v if isinstance(v, tuple | list) else [v] for v in (n.meta["val"] for n in nodes)]
    return {each.dtype for value in values for each in value if each is not None}


@pytest.mark.parametrize("dtype", HALVES)
def test_products_stay_in_bfloat16_where_the_processor_has_instructions(dtype, has_products):
    before = step(Attention().to(dtype), (torch.randn(2, 64, 32).to(dtype),))
    after = computed_in_float32(before)
    stays = has_products and dtype is torch.bfloat16
    assert types_of(after, aten.mm.default, aten.addmm.default) == (
        {torch.bfloat16} if stays else {torch.float32}
    )
    attention = types_of(after, aten._scaled_dot_product_flash_attention_for_cpu.default)
    assert attention == ({dtype, torch.float32} if stays else {torch.float32})  # logarithms
    assert types_of(after, aten.stack.default) == ({dtype} if stays else {torch.float32})
    assert ("7 GEMMs, convolutions and attentions run in bfloat16" in arithmetic(before)) == stays
    assert arithmetic(before).endswith("in float32")


class Layer(Attention):
    """An activation and a norm before attention."""

    def __init__(self):
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(32), nn.Linear(32, 32)

    def forward(self, x):
        return super().forward(self.norm(nn.functional.gelu(self.wide(x))))


def test_generated_code_reads_bfloat16_in_sums_and_norms_and_copies_no_gradient(monkeypatch):
    monkeypatch.setattr(half_products, "has_bfloat16_products", lambda: True)
    monkeypatch.setattr(half_products, "_LEAST_FMAS", 1)
    monkeypatch.setattr("abele.passes.of_lowerings.half._LARGE", 1)
    x = torch.randn(2, 64, 32).bfloat16()
    plan = planned_code(lowered(step(Layer().bfloat16(), (x,))))
    reads: dict[object, list[torch.dtype]] = {}
    for each in (each for unit in plan.units for each in unit.operations):
        target = None if each.part_of is None else each.part_of.target
        reads.setdefault(target, []).extend(place.dtype for place in each.reads[:1])
    assert reads[aten.sum.dim_IntList] == [torch.bfloat16] * 3
    assert reads[aten.native_layer_norm_backward.default] == [torch.bfloat16] * 2
    assert not {aten.stack.default, aten.clone.default} & {*reads}
    order = list(reads)
    sums, attention = map(order.index, (aten.sum.dim_IntList, _BACKWARD))
    assert sums < attention  # where its gradient is in a cache


@pytest.mark.parametrize("kind", ["plain", "transposed", "of each channel"])
def test_convolutions_without_groups_stay_in_bfloat16(kind, has_products):
    after = computed_in_float32(step(net(kind).bfloat16(), batches(kind, torch.bfloat16)[0]))
    wanted = {torch.bfloat16} if has_products else {torch.float32}
    if has_products and kind == "of each channel":
        wanted = {torch.bfloat16, torch.float32}
    assert types_of(after, aten.convolution.default, aten.convolution_backward.default) == wanted


def assert_as_accurate(model, data, target):
    """Steps of SGD are as near to float64's as plain PyTorch's in bfloat16 are."""

    def eagerly(dtype):
        other = copy.deepcopy(model).to(dtype)
        optimizer = torch.optim.SGD(other.parameters(), lr=0.5)
        return run_eagerly(other, optimizer, [(each.to(dtype),) for (each,) in data])

    exact, plain = eagerly(torch.float64), eagerly(torch.bfloat16)
    rule = rule_for(model, "sgd", lr=0.5, momentum=0.0)
    ours = run(started(model, data[0], rule, target=target)[0], data)
    assert distance(ours, exact) <= 1.05 * distance(plain, exact) + 1e-4


def test_onednn_adds_the_biases_of_bfloat16_layers(monkeypatch):
    monkeypatch.setattr(half_products, "has_bfloat16_products", lambda: True)
    monkeypatch.setattr(half_products, "_LEAST_FMAS", 1)
    torch.manual_seed(4)
    model, data = Attention().bfloat16(), [(torch.randn(2, 64, 32).bfloat16(),)] * 2
    before = computed_in_float32(step(model, data[0]))
    after = biases_in_products(before).verify()
    assert types_of(before, aten.addmm.default) == {torch.bfloat16}
    assert not types_of(after, aten.addmm.default)
    assert biases_in_products(after) is after
    assert_as_accurate(model, data, lowered_by(computed_in_float32, biases_in_products))


@pytest.mark.parametrize("bias", [pytest.param(each, marks=NEEDS_COMPILER) for each in (0, 1)])
def test_constant_factors_of_bfloat16_are_packed_once(monkeypatch, bias):
    monkeypatch.setattr(half_products, "has_bfloat16_products", lambda: True)
    monkeypatch.setattr(half_products, "has_bfloat16_tiles", lambda: False)
    monkeypatch.setattr(half_products, "_LEAST_FMAS", 1)
    torch.manual_seed(4)
    layer, x = nn.Linear(34, 65, bias=bool(bias)).bfloat16(), torch.randn(151, 34).bfloat16()
    x[3, 5] = torch.nan
    (program,) = captured(layer, [x]).programs
    program = passes.run_only(passes.run(program), Emitted.passes)
    assert planned_code(program).source.text.count("abele_product_bfloat16_pack(") == 1
    given = [layer.state_dict().get(slot.name, x) for slot in program.inputs]
    (ours,) = Emitted().compile(program).run(given)
    plain, exact = layer(x).detach(), layer.double()(x.double()).detach()
    assert torch.equal(ours.isnan(), plain.isnan())
    ours, plain = ((each - exact).nan_to_num().norm() for each in (ours, plain))
    assert ours <= 1.01 * plain


class Patches(nn.Module):
    """Patches of an image as a transformer reads them."""

    def __init__(self, *, bias):
        super().__init__()
        self.cut = nn.Conv2d(3, 8, (2, 3), (2, 3), bias=bias)

    def forward(self, images):
        rows = self.cut(images).flatten(2).transpose(1, 2).tanh()
        return nn.functional.mse_loss(rows, torch.ones_like(rows))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_patches_of_images_are_rows_of_products(bias, layout, monkeypatch):
    monkeypatch.setattr(half_products, "has_bfloat16_products", lambda: True)
    monkeypatch.setattr(half_products, "_LEAST_FMAS", 1)
    torch.manual_seed(3)
    model, x = Patches(bias=bias).bfloat16(), torch.randn(5, 3, 8, 9).bfloat16()
    data = [(x.contiguous(memory_format=layout),)] * 2
    after = patches_as_products(step(model, data[0])).verify()
    assert not types_of(after, aten.convolution.default, aten.convolution_backward.default)
    assert types_of(after, aten.mm.default, aten.addmm.default) == {torch.bfloat16}
    assert_as_accurate(model, data, lowered_by(patches_as_products, computed_in_float32))


@pytest.mark.parametrize(
    ("size", "settings"), [((7, 9), {}), ((8, 9), {"padding": 1}), ((8, 9), {"dilation": 2})]
)
def test_other_patches_stay_convolutions(size, settings, monkeypatch):
    monkeypatch.setattr(half_products, "has_bfloat16_products", lambda: True)
    monkeypatch.setattr(half_products, "_LEAST_FMAS", 1)
    model = Patches(bias=True)
    model.cut = nn.Conv2d(3, 8, (2, 3), (2, 3), **settings)
    before = step(model.bfloat16(), (torch.randn(5, 3, *size).bfloat16(),))
    after = patches_as_products(before)
    assert types_of(after, aten.convolution.default) == {torch.bfloat16}


def test_small_products_are_computed_in_float32(monkeypatch):
    monkeypatch.setattr(half_products, "has_bfloat16_products", lambda: True)
    sizes = {"few": (2, 64, 32), "many": (128, 64, 32)}
    after = {
        name: computed_in_float32(step(Attention().bfloat16(), (torch.randn(*size).bfloat16(),)))
        for name, size in sizes.items()
    }
    assert types_of(after["few"], aten.addmm.default) == {torch.float32}
    assert types_of(after["many"], aten.addmm.default) == {torch.bfloat16}


def test_a_transposed_gradient_is_not_rounded_again(monkeypatch):
    monkeypatch.setattr(half_products, "has_bfloat16_products", lambda: True)
    monkeypatch.setattr(half_products, "_LEAST_FMAS", 1)
    x = torch.randn(2, 64, 32).bfloat16()
    after = computed_in_float32(step(Attention().bfloat16(), (x,)))
    after.verify()
    factors = [n.args[0] for n in after.graph.graph.nodes if n.target is aten.mm.default]
    turned = [each for each in factors if is_view(each) and each.meta["val"].stride(0) == 1]
    assert len(turned) == 2
    assert all(each.meta["val"].dtype is torch.bfloat16 for each in turned)


def test_large_convolutions_in_bfloat16_are_a_reason_to_run_operator_by_operator(has_products):
    x = torch.randn(4, 4, 512, 512).bfloat16()
    reason = CPU.lowering("op_by_op").why(step(Far().bfloat16(), (x,)))
    assert "12 convolutions of large images" in str(reason)
    kept = "24 GEMMs, convolutions and attentions and 0 operators between them run in bfloat16"
    assert (kept in str(reason)) == has_products


def test_images_between_bfloat16_convolutions_have_no_float32_copy(has_products, monkeypatch):
    monkeypatch.setattr(half_products, "_LEAST_FMAS", 1)
    monkeypatch.setattr("abele.passes.of_lowerings.half._LARGE", 1)
    before = step(net("normalised").bfloat16(), batches("normalised", torch.bfloat16)[0])
    after = with_bfloat16_images(before).verify()
    norms = (
        aten._native_batch_norm_legit_functional.default,
        aten.native_batch_norm_backward.default,
    )
    of_images = (*norms, aten.leaky_relu.default, aten.leaky_relu_backward.default)
    dtype = torch.bfloat16 if has_products else torch.float32
    assert types_of(after, *of_images[2:]) == {dtype}
    fused = fused_normalisation(after).verify()
    assert types_of(fused, norm_activation.forward) == {dtype, torch.float32}
    assert not types_of(fused, *of_images)


def test_a_bias_gradient_of_a_transposed_convolution_is_a_sum(has_products, monkeypatch):
    monkeypatch.setattr(half_products, "_LEAST_FMAS", 1)
    batch = batches("transposed", torch.bfloat16)[0]
    after = with_bfloat16_images(step(net("transposed").bfloat16(), batch)).verify()
    (mask,) = [
        node.args[10][2]
        for node in after.graph.graph.nodes
        if node.target is aten.convolution_backward.default and node.args[7]
    ]
    assert mask is not has_products


def test_float32_programs_stay_as_they_are():
    before = step(net("plain"), batches("plain", torch.float32)[0])
    assert computed_in_float32(before) is before
    assert stored_in_16_bits(before) is before


class Random(nn.Module):
    """A dropout, an explicit cast and an operator that asks for the range of its type."""

    def forward(self, x):
        rounded = (x * x).half().float()
        return nn.functional.dropout(x, 0.5), rounded, torch.nan_to_num(x * 40_000)


def test_random_numbers_explicit_casts_and_ranges_are_those_of_half():
    x = torch.randn(64, 64).half()
    ours = run(started(Random(), (x,), target=HERE)[0], [(x,)]).outputs[0]
    expected = run(started(Random(), (x,), target="reference")[0], [(x,)]).outputs[0]
    for value, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=0, atol=0)


class Far(nn.Module):
    """A large value that is read at once and, in backward, much later."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(12)))

    def forward(self, x):
        return nn.functional.mse_loss(self.layers(x), torch.zeros_like(x))


def test_large_values_are_kept_in_half_until_backward_reads_them():
    x = torch.randn(4, 4, 64, 64).half()
    before = computed_in_float32(step(Far().half(), (x,)))
    after = stored_in_16_bits(before)
    after.verify()
    order = {node: index for index, node in enumerate(after.graph.graph.nodes)}
    spans = {torch.float16: 0, torch.float32: 0}
    for node in order:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.shape == x.shape and node.users:
            span = max(order[user] for user in node.users) - order[node]
            spans[value.dtype] = max(spans[value.dtype], span)
    assert spans[torch.float32] <= 16 < spans[torch.float16]
    memory = CPU.lowering("op_by_op").memory
    peaks = [max(memory(each).alive()) for each in (before, after)]
    assert peaks[1] < 0.7 * peaks[0]


@pytest.mark.parametrize("dtype", HALVES)
def test_products_of_halves_are_those_of_float32_rounded_once(dtype):
    x, w = torch.randn(8, 300).to(dtype), torch.randn(300, 8).to(dtype)
    product = half_products.in_float32(aten.mm.default)
    expected = (x.float() @ w.float()).half() if dtype is torch.float16 else x @ w
    assert torch.equal(product(x, w), expected)


def test_lowerings_of_processors_have_both_passes():
    of_programs, of_code = (CPU.lowering(name).passes for name in ("op_by_op", "emitted"))
    assert {with_bfloat16_images, stored_in_16_bits} <= {*of_programs}
    assert of_code.index(computed_in_float32) == 2
    assert of_code[-1].__name__ == "_stored_in_16_bits"


class Softmaxes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, labels):
        scores = self.second(self.first(x).softmax(1)).log_softmax(1)
        return nn.functional.nll_loss(scores, labels)


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_of_softmax_are_told_that_their_input_is_float32(dtype):
    batch = torch.randn(8, 8).to(dtype), torch.randint(0, 8, (8,))
    after = computed_in_float32(step(Softmaxes().to(dtype), batch))
    told = {
        node.target: node.args[3]
        for node in after.graph.graph.nodes
        if "softmax_backward_data" in str(node.target)
    }
    assert len(told) == 2
    assert {*told.values()} == {torch.float32}


def lowered(program, name="emitted"):
    """A program after the passes of a lowering."""
    for each in CPU.lowering(name).passes:
        program = each(program)
    program.verify()
    return program


def introduction(dtype, rows=16):
    """The update of the tutorial's network by Adam, lowered."""
    torch.manual_seed(0)
    model = ClassificationModel().to(dtype)
    images, labels = torch.rand(rows, 1, 28, 28).to(dtype), torch.randint(0, 10, (rows,))
    rule = rule_for(model, "adam", lr=1e-3)
    return lowered(passes.run(captured(model, (images, labels), rule=rule).programs[0]))


@pytest.mark.parametrize("dtype", HALVES)
def test_the_introduction_needs_less_than_two_thirds_of_the_memory_of_float32(dtype):
    plans = [planned_code(introduction(each)) for each in (dtype, torch.float32)]
    assert not any(plan.calls_torch for plan in plans)
    peaks = [max(plan.memory_use().alive()) for plan in plans]
    assert plans[0].size <= 0.65 * plans[1].size
    assert peaks[0] <= 0.65 * peaks[1]


def test_generated_code_has_no_float32_copy_of_a_weight():
    plan = planned_code(introduction(torch.float16))
    weight = 972 * 100
    copies = [each for each in plan.kept if each.size >= weight and each.kind is Kind.ARENA]
    assert not copies
    assert plan.source.text.count("multiply_by_rows") == 1
    products = [each for unit in plan.units for each in unit.operations if type(each) is Product]
    assert sum(torch.float16 in {p.dtype for p in each.reads} for each in products) >= 3
    assert any(each.writes[0].dtype is torch.float16 for each in products)


class Asking(nn.Module):
    """A large value whose maximum, equality with its cast, and far view are asked for."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.later = nn.Sequential(*(nn.Linear(64, 64) for _ in range(12)))

    def forward(self, x, wanted):
        y = self.first(x)
        view = y[:, 1:]
        alike = (y.float() == y).float().mean()
        far = self.later(y.amax(1, keepdim=True).expand(-1, 64))
        window = view.as_strided((3, 50), (128, 2), 1)
        return alike, window, nn.functional.mse_loss(far.float().mean(1), wanted)


def test_what_asks_for_exact_values_or_strides_gets_them(monkeypatch):
    monkeypatch.setattr("abele.passes.of_lowerings.half._LARGE", 1)
    torch.manual_seed(0)
    model, batch = Asking().half(), (torch.randn(64, 64).half(), torch.randn(64))
    rule = rule_for(model, "sgd", lr=0.1, momentum=0.0)
    ours, reference = (
        run(started(copy.deepcopy(model), batch, rule, target=target)[0], [batch])
        for target in (HERE, "reference")
    )
    assert ours.outputs[0][0] == 1  # all are equal to their cast
    assert_close_by_norm(ours, reference, 5e-3)


@torch.library.custom_op("tests::type_bits", mutates_args=())
def type_bits(x: torch.Tensor) -> torch.Tensor:
    """Return the bits of an element of a tensor's type, in that type."""
    return torch.full_like(x, torch.finfo(x.dtype).bits)


@type_bits.register_fake
def _(x):
    return torch.empty_like(x)


class Custom(nn.Module):
    def forward(self, x):
        return type_bits(x * 2)


def test_operators_of_users_get_their_type():
    x = torch.randn(8).half()
    (value,) = run(started(Custom(), (x,), target=HERE)[0], [(x,)]).outputs[0]
    assert value.tolist() == [16.0] * 8

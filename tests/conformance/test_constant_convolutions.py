"""Inference packs the weights of convolutions once, and again after they have changed."""

import copy
import shutil

import pytest
import torch
from torch import nn
from torch.nn import functional

import abele
import poptorch
from abele.compilation.cache import ExecutableCache
from abele.kernels import on_tensors
from abele.kernels.convolutions import WINOGRAD, kernel_of
from abele.kernels.on_tensors import channels_last
from abele.ops import constant_convolution, half_products
from abele.targets.cpu.op_by_op import constants
from helpers.changes import CHANGES
from helpers.runs import started

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(
        not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler on PATH"
    ),
]
ACTIVATIONS = {
    "none": nn.Identity,
    "relu": nn.ReLU,
    "leaky": nn.LeakyReLU,
    "relu6": nn.ReLU6,
    "silu": nn.SiLU,
    "hardswish": nn.Hardswish,
}
# Channels in and out, kernel, stride, padding, dilation, groups, edges.
SHAPES = {
    "pointwise": (3, 40, 1, 1, 0, 1, 1, (13, 7)),
    "pointwise tail": (65, 33, 1, 2, 0, 1, 1, (9, 11)),
    "few channels": (3, 40, 7, 2, 3, 1, 1, (23, 19)),
    "winograd": (33, 40, 3, 1, 1, 1, 1, (15, 10)),
    "winograd, small tiles": (32, 16, 3, 1, 1, 1, 1, (5, 5)),
    "winograd, no padding": (32, 16, 3, 1, 0, 1, 1, (9, 12)),
    "depthwise": (24, 24, 3, 2, 1, 1, 24, (11, 9)),
    "groups": (12, 18, 3, 1, 1, 1, 3, (8, 8)),
    "dilated": (20, 36, 3, 1, 2, 2, 1, (12, 9)),
    "strided": (17, 31, 5, 3, 2, 1, 1, (16, 21)),
}


@pytest.fixture(autouse=True)
def _op_by_op(monkeypatch):
    monkeypatch.setenv("ABELE_LOWERING", "op_by_op")


class Block(nn.Module):
    """A convolution with batch norm, a residual sum and an activation, as chosen."""

    def __init__(self, shape, activation, *, norm, bias, residual):
        super().__init__()
        inputs, outputs, kernel, stride, padding, dilation, groups, _ = shape
        settings = kernel, stride, padding, dilation, groups
        self.convolution = nn.Conv2d(inputs, outputs, *settings, bias=bias)
        self.around = nn.Conv2d(inputs, outputs, *settings) if residual else None
        self.norm = nn.BatchNorm2d(outputs) if norm else nn.Identity()
        self.activation = ACTIVATIONS[activation]()
        for each in self.norm.state_dict().values():
            if each.is_floating_point():
                each.uniform_(0.5, 1.5)

    def forward(self, x):
        y = self.norm(self.convolution(x))
        return self.activation(y if self.around is None else self.around(x) + y)


def block(name="winograd", activation="relu", **how):
    torch.manual_seed(5)
    shape = SHAPES[name]
    how = {"norm": True, "bias": False, "residual": True} | how
    return Block(shape, activation, **how).eval(), torch.randn(2, shape[0], *shape[-1])


def running(model, x, **options):
    session, record = started(model, [x], target="cpu", **options)
    assert record.lowerings["forward"].name == "op_by_op"
    return session


def packings(monkeypatch):
    """Return a list that grows with each weight that is packed for later calls."""
    packed, hold = [], constants.ConstantConvolution.hold

    def noted(self, *arguments):
        packed.append(self)
        hold(self, *arguments)

    monkeypatch.setattr(constants.ConstantConvolution, "hold", noted)
    return packed


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_errors_are_those_of_plain_pytorch(name, activation):
    # Each shape has each pair of these with some activation.
    index = [*SHAPES].index(name) + [*ACTIVATIONS].index(activation)
    residual, with_norm = index % 2 > 0, index % 3 > 0
    model, x = block(name, activation, norm=with_norm, bias=not residual, residual=residual)
    session = running(model, x)
    (program,) = session.executable.programs
    targets = [node.target for node in program.graph.graph.nodes]
    assert targets.count(constant_convolution.operator) == 1 + residual
    with torch.no_grad():
        exact, plain = copy.deepcopy(model).double()(x.double()), model(x)
    largest = exact.abs().max()
    for _ in range(2):
        (value,) = session.step([x])
        own, others = ((each - exact).abs().max() / largest for each in (value, plain))
        assert own <= 4 * others + 1e-6


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("edges", [(32, 32), (21, 30)])
def test_bfloat16_images_have_no_larger_errors_than_plain_pytorch(monkeypatch, activation, edges):
    monkeypatch.setattr(half_products, "has_bfloat16_products", lambda: True)
    monkeypatch.setattr(half_products, "has_bfloat16_tiles", lambda: False)
    monkeypatch.setitem(SHAPES, "bfloat16", (45, 40, 3, 1, 1, 1, 1, edges))
    model, x = block("bfloat16", activation, residual=activation != "none", bias=edges[0] == 21)
    model, x = model.bfloat16(), x.bfloat16()
    session = running(model, x)
    (program,) = session.executable.programs
    targets = [node.target for node in program.graph.graph.nodes]
    assert targets.count(constant_convolution.operator) == 1 + (activation != "none")
    with torch.no_grad():
        exact, plain = copy.deepcopy(model).double()(x.double()), model(x)
    for _ in range(2):
        (value,) = session.step([x])
        assert value.dtype is torch.bfloat16
        assert (value - exact).norm() <= (plain - exact).norm()
    x[1, 2, 3, 4] = torch.nan
    (value,) = session.step([x])
    assert value.isnan()[1, :, 2:5, 3:6].all()
    assert not value[0].isnan().any()


@pytest.mark.parametrize("points", [16, 36])
@pytest.mark.parametrize("edge", [7, 28])
def test_both_forms_of_winograd_have_small_errors_and_the_same_bits(own, threads, points, edge):
    torch.manual_seed(1)
    x, weight = torch.randn(1, 256, edge, edge).relu_(), torch.randn(256, 256, 3, 3) / 48
    sizes, x = (x.shape, (1, 1), (1, 1), 1.0, points), channels_last(x)
    results = []
    for count in (1, 2, 3):  # of the smaller image these share products
        threads(count)
        results.append(on_tensors.winograd(own, *sizes, weight, None)(x, None))
    exact = functional.conv2d(x.double(), weight.double(), padding=1)
    assert (results[0] - exact).abs().max() <= 1e-6 * exact.abs().max()
    assert all(torch.equal(each, results[0]) for each in results)


def test_images_of_few_channels_are_read_where_they_lie():
    model, x = block("few channels", residual=False)
    (program,) = running(model, x).executable.programs
    graph = program.graph.graph
    (convolution,) = graph.find_nodes(op="call_function", target=constant_convolution.operator)
    assert convolution.args[0].op == "placeholder"


def test_not_a_number_stays_one():
    for name in ("few channels", "pointwise", "winograd", "depthwise"):
        for activation in ACTIVATIONS:
            model, x = block(name, activation)
            session = running(model, x)
            session.step([x])  # with which programs are compared
            x[0, 0, 3, 2] = torch.nan
            with torch.no_grad():
                expected = model(x).isnan()
            (value,) = session.step([x])
            # A tile of Winograd's is 4 x 4 inputs: others of its outputs may be NaN, too.
            assert expected.any()
            assert value.isnan()[expected].all()


def test_weights_are_packed_once_until_they_change(monkeypatch):
    model, x = block()
    packed, session = packings(monkeypatch), running(model, x)
    first = session.step([x])[0]
    assert torch.equal(session.step([x])[0], first)
    assert len(packed) == 2
    with torch.no_grad():
        for each in (model.convolution.weight, model.norm.weight, model.norm.running_mean):
            before = len(packed)
            each.mul_(1.5)
            session.write_params(dict(model.named_parameters()))
            session.write_buffers(dict(model.named_buffers()))
            (value,) = session.step([x])
            torch.testing.assert_close(value, model(x), rtol=1e-4, atol=1e-5)
            assert len(packed) == before + 2


def test_a_wrapper_sends_changed_weights():
    model, x = block()
    wrapped = poptorch.inferenceModel(model, poptorch.Options())
    wrapped(x)
    with torch.no_grad():
        model.convolution.weight.data.neg_()
        wrapped.copyWeightsToDevice()
        torch.testing.assert_close(wrapped(x), model(x), rtol=1e-4, atol=1e-5)


def test_weights_of_the_user_are_packed_when_their_contents_change(monkeypatch):
    packed = packings(monkeypatch)
    monkeypatch.setenv("ABELE_TARGET", "cpu")
    model, x = block()
    function = abele.compile(torch.no_grad()(lambda x: model(x)))
    for change in (None, *CHANGES.values()):
        if change is not None:
            change(model.convolution.weight)
        before = len(packed)
        for _ in range(2):
            with torch.no_grad():
                torch.testing.assert_close(function(x), model(x), rtol=1e-4, atol=1e-5)
        assert len(packed) == before + 2


def test_programs_from_a_cache_give_the_same_bits(tmp_path):
    model, x = block()
    cache = ExecutableCache(tmp_path)
    one, other = (running(model, x, cache=cache).step([x])[0] for _ in range(2))
    assert torch.equal(one, other)


def test_sessions_of_inference_mode_pack_once_too(monkeypatch):
    packed = packings(monkeypatch)
    model, x = block()
    with torch.inference_mode():
        session = running(model, x)
        (value,) = (session.step([x]), session.step([x]))[1]
        torch.testing.assert_close(value, model(x), rtol=1e-4, atol=1e-5)
        assert len(packed) == 2
        session.params["convolution.weight"].zero_()
        assert not torch.equal(session.step([x])[0], value)


def test_several_iterations_pack_once(monkeypatch):
    packed = packings(monkeypatch)
    monkeypatch.setenv("ABELE_TARGET", "cpu")
    model, x = block()
    options = poptorch.Options()
    options.deviceIterations(2)
    wrapped = poptorch.inferenceModel(model, options)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(wrapped(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(packed) == 2


def test_results_read_elsewhere_are_not_fused():
    class Read(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1)

        def forward(self, x):
            y = self.one(x)
            z = self.other(y) + y
            return torch.relu(z) * y, z.sum() + functional.hardtanh(y, -0.5, 0.25).sum()

    model, x = Read(), torch.randn(2, 16, 6, 6)
    with torch.no_grad():
        expected = model(x)
    for value, plain in zip(running(model, x).step([x]), expected, strict=True):
        torch.testing.assert_close(value, plain, rtol=1e-4, atol=1e-4)


def test_kernels_of_this_page_are_both_tried():
    kinds = set()
    for name in SHAPES:
        model, x = block(name, residual=False)
        (program,) = running(model, x).executable.common
        nodes = program.graph.graph.find_nodes(
            op="call_function", target=torch.ops.aten.convolution.default
        )
        kinds.update(kernel_of(node) is WINOGRAD for node in nodes)
    assert kinds == {True, False}

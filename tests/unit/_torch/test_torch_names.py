"""Each private torch name of ``abele._torch`` exists and does what we rely on.

When this file fails after torch moved, ``abele._torch`` is the place to change.
"""

import ast
import contextlib
import importlib
import inspect
import logging
import os
import re
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils import checkpoint

from abele import _torch
from abele._torch import contexts, dynamo, shortcuts
from abele._torch.contexts import counted_as_parameters, scripted_functions_replaced

# Which modes were open before; queues that are compared by what they are.
_FLAGS = {
    "old_dispatch_mode_flags",
    "old_non_infra_dispatch_mode_flags",
    "old_without_ignore_compile_internals_dispatch_mode_flags",
}


class Scaled(nn.Module):
    def forward(self, x):
        return [x * 2, x.sum()]


def test_every_name_is_tested_here():
    tree = ast.parse(Path(inspect.getfile(_torch)).read_text())
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = {node.name for node in tree.body if isinstance(node, kinds)} | set(_torch.__all__)
    here = Path(__file__).read_text()
    assert {name for name in names if f"_torch.{name}" not in here} == set()


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_compiled_functions_are_traced_as_what_they_were_made_of():
    function = torch.compile(lambda x: x.sin() + 1)
    with pytest.raises(RuntimeError, match="symbolically trace a dynamo-optimized function"):
        _torch.make_fx(function)(torch.ones(2))
    with dynamo.compiled_functions_run_plainly():
        graph = _torch.make_fx(function)(torch.ones(2))
    assert torch.equal(graph(torch.zeros(2)), torch.ones(2))


def test_fake_tensors_have_shapes_and_no_data():
    mode = _torch.FakeTensorMode(allow_non_fake_inputs=True)
    fake = mode.from_tensor(torch.ones(2, 3, dtype=torch.float16))
    assert isinstance(fake, _torch.FakeTensor)
    assert (fake.shape, fake.dtype, fake.device.type) == ((2, 3), torch.float16, "cpu")
    with mode:
        assert (fake @ torch.ones(3, 4, dtype=torch.float16)).shape == (2, 4)


def test_the_log_of_fakes_can_be_silent():
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addHandler(handler)
    fake = _torch.FakeTensorMode().from_tensor(torch.ones(2, 3))
    try:
        with _torch.without_log_of_fakes(), pytest.raises(RuntimeError, match="reduction dim"):
            fake @ fake
        assert not records
        with pytest.raises(RuntimeError, match="reduction dim"):
            fake @ fake
        assert "failed while attempting to run meta" in records[0].getMessage()
    finally:
        log.removeHandler(handler)


def test_one_trace_sees_forward_and_backward():
    def function(x):
        (gradient,) = torch.autograd.grad((x.sin() * x).sum(), [x])
        return gradient

    x = torch.linspace(0, 1, 5)
    graph = _torch.make_fx(function)(x.clone().requires_grad_())
    targets = {node.target for node in graph.graph.nodes}
    assert {torch.ops.aten.sin.default, torch.ops.aten.cos.default} <= targets
    torch.testing.assert_close(graph(x), x.cos() * x + x.sin())


def test_a_decomposition_replaces_an_operator():
    table = {torch.ops.aten.relu.default: lambda x: x.clamp(min=0)}
    graph = _torch.make_fx(torch.relu, decomposition_table=table)(torch.ones(2))
    assert torch.ops.aten.relu.default not in {node.target for node in graph.graph.nodes}


def test_a_traced_tensor_knows_its_node():
    results = []

    def function(x):
        y = x.sin()
        results.extend([_torch.traced_node(y), _torch.traced_node(torch.ones(1)), y])
        results.append(list(_torch.traced_nodes()))
        return y

    with _torch.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        _torch.make_fx(function)(mode.from_tensor(torch.ones(2)))
    assert results[0].target is torch.ops.aten.sin.default
    assert _torch.traced_node(results[2]) is None
    assert results[0] in results[3]
    assert not _torch.traced_nodes()
    assert _torch.traced_node(torch.ones(1)) is None


def test_the_mode_is_there_only_during_a_trace():
    seen = []

    def function(x):
        seen.append(_torch.get_proxy_mode())
        return x + 1

    _torch.make_fx(function)(torch.ones(1))
    assert seen[0] is not None
    assert _torch.get_proxy_mode() is None


def test_fakes_of_a_capture_allow_loops_and_no_values():
    mode = _torch.static_fakes()
    fake = mode.from_tensor(torch.ones(3))
    assert all(type(size) is int for size in fake.shape)
    with pytest.raises(_torch.DataDependentOutputException, match="_local_scalar_dense"):
        fake.sum().item()
    with pytest.raises(_torch.DynamicOutputShapeException, match="nonzero"):
        fake.nonzero()

    def function(x):
        def less(i, x):
            return i < 3

        def body(i, x):
            return i + 1, x * 2

        return torch.ops.higher_order.while_loop(less, body, (torch.zeros(()), x), ())

    with mode:
        _torch.prepare_control_flow()
        graph = _torch.graph_of(function, [fake])
    torch.testing.assert_close(graph(torch.ones(3))[1], torch.full((3,), 8.0))
    with pytest.raises(_torch.DynamicOutputShapeException, match="nonzero"):
        fake.nonzero()


def test_a_tensor_stands_for_a_node():
    def function(x):
        y = x.sin()
        again = _torch.tracked_fake(_torch.traced_node(y))
        assert again is not y
        return again + 1

    with _torch.static_fakes() as mode:
        graph = _torch.make_fx(function)(mode.from_tensor(torch.ones(2)))
    torch.testing.assert_close(graph(torch.ones(2)), torch.ones(2).sin() + 1)
    assert len(graph.graph.nodes) == 4


def test_tracking_gives_a_tensor_its_node():
    def function(x):
        proxy = torch.fx.Proxy(_torch.traced_node(x), _torch.get_proxy_mode().tracer)
        with _torch.disable_proxy_modes_tracing():
            other = x + 1
        assert _torch.traced_node(other) is None
        mode = _torch.get_proxy_mode()
        _torch.track_tensor_tree(other, proxy, constant=None, tracer=mode.tracer)
        assert _torch.traced_node(other) is _torch.traced_node(x)
        return x * 2

    with _torch.static_fakes() as mode:
        _torch.make_fx(function)(mode.from_tensor(torch.ones(2)))


def test_real_values_can_be_computed_during_a_trace():
    def function(x):
        with _torch.outside_the_trace():
            assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]
        return x + 1

    with _torch.static_fakes() as mode:
        graph = _torch.make_fx(function)(mode.from_tensor(torch.ones(2)))
    assert len(graph.graph.nodes) == 3


def test_transformers_ask_whether_a_mask_is_causal():
    transformer = importlib.import_module("torch.nn.modules.transformer")
    before = transformer._detect_is_causal_mask
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    answers = {"known": lambda m: m, "unknown": lambda m: None}
    results = {}
    for name, answer in answers.items():
        with _torch.causal_masks_from(answer):
            results[name] = transformer._detect_is_causal_mask(mask)
            assert transformer._detect_is_causal_mask(mask, True)
            assert not transformer._detect_is_causal_mask(None)
    assert results == {"known": True, "unknown": False}
    assert transformer._detect_is_causal_mask is before


def test_checkpoints_compute_again_within_a_context():
    opened = []

    @contextlib.contextmanager
    def context():
        opened.append(True)
        yield

    x = torch.ones(3, requires_grad=True)
    name = contexts._recomputing()
    before = getattr(checkpoint, name)
    with _torch.recomputed_within(context):
        y = checkpoint.checkpoint(lambda each: each.sin().exp(), x, use_reentrant=False)
        assert not opened
    y.sum().backward()
    assert opened == [True]
    torch.testing.assert_close(x.grad, x.detach().cos() * x.detach().sin().exp())
    assert getattr(checkpoint, name) is before


def test_checkpoints_of_other_threads_are_left_alone():
    opened = []

    def elsewhere():
        x = torch.ones(3, requires_grad=True)
        checkpoint.checkpoint(torch.sin, x, use_reentrant=False).sum().backward()

    with _torch.recomputed_within(lambda: contextlib.nullcontext(opened.append(True))):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert not opened


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_what_torch_func_and_forward_derivatives_see():
    x, seen = torch.ones(3), []

    def noted(each):
        seen.append(_torch.is_transformed(each))
        return each.sum()

    torch.func.grad(noted)(x)
    torch.func.jvp(noted, (x,), (x,))
    with forward_ad.dual_level():
        noted(forward_ad.make_dual(x, x))
        noted(x)
    noted(x)
    assert seen == [True, True, True, False, False]


def test_what_sees_each_operator_is_known():
    found = []

    def noted(x):
        found.append(_torch.is_observed())
        return x * 1

    x = torch.ones(2)
    noted(x)
    with torch.device("cpu"):
        noted(x)
        assert _torch.default_device() == torch.device("cpu")
    assert _torch.default_device() is None
    assert found == [False, False]
    torch.func.vmap(noted)(x)
    _torch.make_fx(noted)(x)
    with _torch.FakeTensorMode():
        noted(torch.ones(2))
    with torch.autograd.set_detect_anomaly(True), forward_ad.dual_level():
        noted(x)
    with torch.autograd.graph.save_on_cpu():
        noted(x)
    assert found[2:] == [True] * 5


def phases(graph):
    return [
        node.meta["custom"]["phase"] for node in graph.graph.nodes if node.op == "call_function"
    ]


def two_phases(x):
    y = x.sin()
    _torch.mark_traced("first")
    y = y.cos()
    _torch.mark_traced("second")
    return y


def test_phases_are_marked_and_survive_another_trace():
    graph = _torch.make_fx(two_phases, record_stack_traces=True)(torch.ones(1))
    assert phases(graph) == ["first", "second"]
    with _torch.preserve_node_meta():
        again = _torch.make_fx(torch.fx.Interpreter(graph).run)(torch.ones(1))
    assert phases(again) == ["first", "second"]
    _torch.mark_traced("outside a trace it does nothing")


def test_lines_of_functions_named_forward_are_recorded_and_survive_another_trace():
    def forward(x):
        return x.sin()

    graph = _torch.make_fx(forward, record_stack_traces=True)(torch.ones(1))
    with _torch.preserve_node_meta():
        again = _torch.make_fx(torch.fx.Interpreter(graph).run)(torch.ones(1))
    for each in (graph, again):
        node = next(n for n in each.graph.nodes if n.target is torch.ops.aten.sin.default)
        assert "return x.sin()" in node.meta["stack_trace"]


def test_subclasses_compute_like_plain_tensors():
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    loud = torch.ones(2).as_subclass(Loud)
    with _torch.without_torch_function():
        assert type(loud + 1) is torch.Tensor
    with pytest.raises(AssertionError, match="add"):
        loud + 1


def test_the_mode_of_a_capture_is_what_its_constructor_makes():
    made = vars(shortcuts.mode_of_a_capture())
    expected = vars(_torch.FakeTensorMode(allow_non_fake_inputs=True, static_shapes=True))
    assert made.keys() == expected.keys()
    objects = {"_stack_trace", "fake_tensor_converter"}
    assert {name: value for name, value in made.items() if name not in objects | _FLAGS} == {
        name: value for name, value in expected.items() if name not in objects | _FLAGS
    }


def test_torch_remembers_no_results_of_a_capture():
    before = _torch.FakeTensorMode.cache_info().size
    with _torch.static_fakes() as mode:
        mode.from_tensor(torch.ones(3, 59, 61)).cos()
    assert _torch.FakeTensorMode.cache_info().size == before


def test_the_mode_of_a_trace_is_what_its_constructor_makes():
    tracer = shortcuts.PythonKeyTracer()
    made = vars(shortcuts.mode_of_a_trace(tracer, {}))
    expected = vars(shortcuts.ProxyTorchDispatchMode(tracer, "real"))
    assert {k: v for k, v in made.items() if k not in _FLAGS} == {
        k: v for k, v in expected.items() if k not in _FLAGS
    }


_TRAINED = """
import sys, torch, poptorch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.last = nn.Linear(144, 2)
    def forward(self, x, y):
        return nn.functional.cross_entropy(self.last(self.layers(x)), y)

net = Net()
rule = torch.optim.Adam(net.parameters())
training = poptorch.trainingModel(net, poptorch.Options().showCompilationProgressBar(False), rule)
training(torch.ones(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64))
later = "torch._dynamo", "torch._inductor", "torch.distributed.tensor"
print(*(name for name in later if name in sys.modules))
print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
print(torch._dynamo.config.cache_size_limit > 0, sys.modules["torch._dynamo"] is torch._dynamo)
rule.zero_grad()
"""
# Distributed tensors, which no capture loads.
_DISTRIBUTED = """
from torch import distributed
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
one = distribute_tensor(torch.ones(2, 2), mesh, [Shard(0)]).requires_grad_()
total = (one @ distribute_tensor(torch.ones(2, 2), mesh, [Replicate()])).relu().sum()
total.backward()
print(type(total) is DTensor, type(one.grad) is DTensor, total.full_tensor().item())

asked = []
class Own(DTensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        asked.append(str(func))
        return super().__torch_dispatch__(func, types, args, kwargs)

own = one.detach()
own.__class__ = Own
torch.neg(own)
print(asked)
"""


def test_training_loads_neither_torchs_compiler_nor_distributed_tensors_and_both_work_later():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _TRAINED + _DISTRIBUTED],
        env={**os.environ, "ABELE_TARGET": "reference", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = ["", "2.0", "True True", "True True 8.0", "['aten.neg.default']"]
    assert done.stdout.splitlines() == lines, done.stderr


def test_operators_are_of_the_class_we_ask_for():
    assert isinstance(torch.ops.aten.relu.default, _torch.OpOverload)


def test_cudnn_computes_without_tf32_also_where_flags_are_frozen(monkeypatch):
    cudnn = torch.backends.cudnn
    flags = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", False)
    with pytest.raises(RuntimeError, match="not allowed to set"):
        cudnn.allow_tf32 = False
    with _torch.without_tf32():
        assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == ("none", "none")
    assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == ("tf32", "tf32")


def test_onednn_is_left_alone_afterwards():
    before = torch.backends.mkldnn.enabled
    with _torch.without_onednn():
        assert not torch.backends.mkldnn.enabled
        with _torch.with_outer_onednn():
            assert torch.backends.mkldnn.enabled == before
        assert not torch.backends.mkldnn.enabled
    assert torch.backends.mkldnn.enabled == before


def test_cudnns_lstm_is_one_of_gpus():
    x, state = torch.ones(2, 1, 3), torch.zeros(1, 1, 2)
    weights = [torch.ones(8, 3), torch.ones(8, 2), torch.ones(8), torch.ones(8)]
    how = 2, 2, 0, 1, False, 0.0, True, False, [], None
    with pytest.raises(NotImplementedError, match="_cudnn_rnn"):
        _torch.cudnn_rnn(x, weights, 4, None, state, state, *how)


def test_hooks_and_children_can_be_looked_at():
    layer = nn.Linear(2, 2)
    layer.register_forward_pre_hook(hook := lambda module, inputs: None)
    assert list(_torch.forward_pre_hooks(layer).values()) == [hook]
    outer = nn.Module()
    outer.one, outer.two = layer, layer
    outer.register_module("none", None)
    assert _torch.children_by_name(outer) == {"one": layer, "two": layer, "none": None}


def test_devices_of_fake_tensors_are_shown_as_asked():
    fake = _torch.FakeTensorMode().from_tensor(torch.ones(2))
    with _torch.devices_shown(lambda tensor, device: torch.device(f"{device.type}:7")):
        assert fake.device == torch.device("cpu:7")
        assert torch.ones(2).device.type == "cpu"
    assert fake.device == torch.device("cpu")


def test_distributions_are_checked_again_afterwards():
    # torch's compiler, once used in a process, turns the checks off for good.
    for checks in (False, True):
        torch.distributions.Distribution.set_default_validate_args(checks)
        assert _torch.checks_distributions() is checks
    with _torch.unchecked_distributions():
        torch.distributions.Normal(0.0, torch.tensor(-1.0))
    with pytest.raises(ValueError, match="constraint"):
        torch.distributions.Normal(0.0, torch.tensor(-1.0))


def test_masks_of_distributions_are_judged_by_a_function():
    torch.distributions.Distribution.set_default_validate_args(True)
    seen = []
    with (
        _torch.distributions_check_by(lambda valid: not seen.append(valid)),
        _torch.FakeTensorMode() as mode,
    ):
        found = torch.distributions.Normal(mode.from_tensor(torch.ones(3)), 1.0)
        found.log_prob(mode.from_tensor(torch.ones(3)))
    assert [each.dtype for each in seen] == [torch.bool] * 3
    with pytest.raises(ValueError, match="constraint"):
        torch.distributions.Normal(0.0, torch.tensor(-1.0))


def test_operators_are_found_by_the_names_they_have():
    aten = torch.ops.aten
    names = {
        aten.mul.Tensor: "aten::mul.Tensor",
        aten.clone.default: "aten::clone.default",
        aten.__and__.Scalar: "aten::__and__.Scalar",
        torch.ops.higher_order.cond: "higher_order::cond",
    }
    for operator, name in names.items():
        assert isinstance(operator, _torch.OpOverload | _torch.HigherOrderOperator)
        assert _torch.is_operator(operator)
        assert _torch.operator_name(operator) == name
        assert _torch.find_operator(name) is operator
    assert isinstance(aten.mul, _torch.OpOverloadPacket)
    assert not _torch.is_operator(aten.mul)
    assert aten.mul.Tensor in _torch.overloads(aten.mul)
    assert _torch.overloads(aten.mul.Tensor) == []


@pytest.mark.parametrize("name", ["aten::mul", "aten::ghost.x", "load_library::x.y", "mul", ""])
def test_nothing_else_is_found_among_operators(name):
    assert _torch.find_operator(name) is None


def test_a_linear_layer_can_add_its_bias():
    function = _torch.linear_with_bias()
    if function is None:
        pytest.skip("this torch has no oneDNN")
    for dtype in (torch.float32, torch.bfloat16):
        x, weight, bias = (torch.randn(*size).to(dtype) for size in ((5, 7), (3, 7), (3,)))
        exact = torch.addmm(bias.double(), x.double(), weight.double().t())
        output = function(x, weight, bias, "none", [], "")
        torch.testing.assert_close(output, exact.to(dtype))


def test_a_convolution_can_apply_an_activation():
    function = _torch.convolution_with_activation()
    if function is None:
        pytest.skip("this torch has no oneDNN")
    x, weight, bias = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3), torch.randn(4)
    settings = [1, 1], [1, 1], [1, 1], 1
    plain = torch.conv2d(x, weight, bias, padding=1)
    for activation, expected in (
        (("none", [], ""), plain),
        (("leaky_relu", [0.1], ""), torch.nn.functional.leaky_relu(plain, 0.1)),
    ):
        output = function(x, weight, bias, *settings, *activation)
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


def test_composite_operators_are_made_of_others():
    assert _torch.is_composite(torch.ops.aten.matmul.default)
    assert _torch.is_composite(torch.ops.aten.upsample_bilinear2d.vec)
    assert not _torch.is_composite(torch.ops.aten.mm.default)
    assert not _torch.is_composite(torch.ops.aten.silu_backward.default)


def test_graphs_can_generate_their_code_when_they_first_run():
    with _torch.code_when_run():
        traced = _torch.make_fx(lambda x: x * 2)(torch.ones(2))
    copied = _torch.graph_module(traced, traced.graph)
    for graph in (traced, copied):
        assert "_code" not in vars(graph)
        assert graph(torch.ones(2)).tolist() == [2, 2]
        assert "mul" in graph.code


def test_operators_of_a_trace_can_be_intercepted():
    seen, created = [], []

    def call(function, args, kwargs, trace):
        seen.append(function)
        return trace(function, args, kwargs)

    def body(mode, x):
        with _torch.Interception() as trace:
            trace.intercept(call, created.append)
            y = x.double()
            node, source = trace.node_of(y), trace.node_of(x)
            copied = trace.graph.node_copy(node, lambda old: old)
            made = _torch.laid_out_like(y, mode)
            trace.stand_for(made, copied)
            assert trace.node_of(made) is copied
            assert next(reversed(trace.graph.nodes)) is copied
            shared = _torch.laid_out_like(x, mode, x)
            row = _torch.view_of(x, mode, (3,), (1,), 3, like=x)
            stated = _torch.laid_out((2, 3), (1, 2), torch.int32, torch.device("cpu"), mode)
        assert source.op == "placeholder"
        assert (made.dtype, made.shape, made.device.type) == (torch.float64, (2, 3), "cpu")
        assert shared.untyped_storage()._cdata == x.untyped_storage()._cdata
        assert row.untyped_storage()._cdata == x.untyped_storage()._cdata
        assert (row.shape, row.storage_offset()) == ((3,), 3)
        assert (stated.dtype, stated.shape, stated.stride()) == (torch.int32, (2, 3), (1, 2))
        assert (stated.device.type, stated.fake_mode) == ("cpu", mode)
        return [y * 1, made * 1]

    with _torch.static_fakes() as mode:
        graph = _torch.make_fx(lambda x: body(mode, x))(mode.from_tensor(torch.ones(2, 3)))
    assert seen == [torch.ops.aten._to_copy.default]
    assert [node.target for node in created] == seen
    assert [value.dtype for value in graph(torch.ones(2, 3))] == [torch.float64] * 2


def test_stacks_leave_the_tracer_out():
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    listed = {path for path in shapes.uninteresting_files() if _has_forward(path)}
    assert inspect.getfile(torch.fx.Tracer) in listed
    assert not [path for path in listed if not _torch.is_of_the_tracer(path)]
    assert not _torch.is_of_the_tracer(__file__)
    assert not _torch.is_of_the_tracer(inspect.getfile(torch.nn.Linear))


def _has_forward(path: str) -> bool:
    return path == "<string>" or bool(re.search(r"^ *def forward\(", Path(path).read_text(), re.M))


def test_reading_a_shape_can_go_around_modes():
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    fake = _torch.FakeTensorMode().from_tensor(torch.ones(2))
    with Mode():
        with _torch.without_torch_function_modes():
            assert fake.shape == (2,)
        assert not seen
        assert fake.shape == (2,)
    assert seen


def test_tensors_count_as_parameters_for_a_time():
    tensor, other = torch.ones(2), torch.ones(2)
    with counted_as_parameters([tensor]):
        assert isinstance(tensor, nn.Parameter)
        assert not isinstance(other, nn.Parameter)
    assert not isinstance(tensor, nn.Parameter)


def test_the_schema_of_an_operator_names_its_arguments():
    schema = _torch.schema_of(torch.ops.aten.add_.Tensor)
    assert schema.name == "aten::add_"
    assert schema.is_mutable
    assert [each.name for each in schema.arguments] == ["self", "other", "alpha"]


def test_views_lie_in_the_memory_of_their_base():
    with _torch.static_fakes():
        base, other = torch.empty(4), torch.empty(4)
    assert _torch.memory_of(base) == _torch.memory_of(base[1:]) != _torch.memory_of(other)


def test_what_an_operator_calls_computes_the_same():
    kernel = _torch.kernel_of(torch.ops.aten.add.Tensor)
    assert torch.equal(kernel(torch.ones(2), torch.ones(2), alpha=3), torch.full((2,), 4.0))


def doubled(x):
    return x * 2


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_scripted_function_is_replaced_in_one_context_alone():
    scripted, x = torch.jit.script(doubled), torch.ones(1)
    other = []
    with scripted_functions_replaced({scripted.qualified_name: lambda x: x * 3}):
        assert scripted(x).item() == 3
        thread = threading.Thread(target=lambda: other.append(scripted(x).item()))
        thread.start()
        thread.join()
        with scripted_functions_replaced({}):
            assert scripted(x).item() == 2
    assert scripted(x).item() == 2
    assert other == [2]


class Pair(NamedTuple):
    first: object
    second: object


def test_containers_become_leaves_and_a_structure():
    value = {"a": [torch.ones(1), Pair(2, None)], "b": OrderedDict(c=torch.Size([3, 4]))}
    leaves, structure = _torch.flatten(value)
    assert [type(each) for each in leaves] == [torch.Tensor, int, type(None), torch.Size]
    assert _torch.flatten(value)[1] == structure
    assert _torch.flatten([value])[1] != structure
    again = _torch.unflatten(leaves, structure)
    assert again == value
    assert type(again["a"][1]) is Pair
    assert again["a"][0] is leaves[0]


@pytest.mark.parametrize(
    ("name", "index"), [("register_hook", 0), ("register_post_accumulate_grad_hook", 1)]
)
def test_hooks_of_a_tensor_are_listed(name, index):
    tensor = torch.ones(1, requires_grad=True)
    assert _torch.hooks_of(tensor) == [[], []]
    handle = getattr(tensor, name)(lambda _: None)
    found = _torch.hooks_of(tensor)
    assert found[index] == [handle.id]
    assert found[1 - index] == []
    handle.remove()
    assert _torch.hooks_of(tensor) == [[], []]


@pytest.mark.parametrize(
    "register",
    [
        nn.modules.module.register_module_forward_pre_hook,
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_full_backward_pre_hook,
        nn.modules.module.register_module_full_backward_hook,
        register_optimizer_step_pre_hook,
        register_optimizer_step_post_hook,
    ],
    ids=lambda register: register.__name__,
)
def test_hooks_of_all_modules_and_optimizers_are_listed(register):
    before = _torch.global_hooks()
    handle = register(lambda *_: None)
    added = [
        [each for each in now if each not in then]
        for then, now in zip(before, _torch.global_hooks(), strict=True)
    ]
    handle.remove()
    assert sorted(added) == [[], [], [], [], [], [handle.id]]

    def own(*_):
        pass

    own.__module__ = "abele.trace.scopes"
    assert _torch.is_own(own)
    handle = register(own)
    assert _torch.global_hooks() == before
    handle.remove()


def test_packed_weights_give_a_convolution_that_adds():
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    x, weight, bias = torch.randn(2, 6, 5, 7), torch.randn(4, 3, 3, 3), torch.randn(4)
    packed = _torch.packed_convolution_weight(weight, [1, 0], [2, 1], [1, 1], 2, x.shape)
    plain, summed = _torch.packed_convolutions()
    places, expected = (
        ([1, 0], [2, 1], [1, 1], 2),
        torch.conv2d(x, weight, bias, (2, 1), (1, 0), 1, 2),
    )
    y = plain(x, packed, bias, *places, "none", [], "")
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    onto = torch.ones_like(y)
    z = summed(onto, x, packed, bias, *places, "add", 1.0, None, [], None)
    torch.testing.assert_close(onto, expected + 1, rtol=1e-5, atol=1e-5)
    assert z.data_ptr() == onto.data_ptr()


UNLIKE = {
    "type": lambda x: x.as_subclass(nn.Parameter),
    "dtype": lambda x: x.double(),
    "shape": lambda x: x[:2],
    "strides": lambda x: x.t(),
    "requires_grad": lambda x: x.requires_grad_(),
    "negative": torch._neg_view,
}


@pytest.mark.parametrize("change", UNLIKE)
def test_tensors_of_other_forms_are_not_alike(change, monkeypatch):
    alike = _torch.comparison_with([torch.ones(3, 2), torch.ones(2)])
    assert alike(torch.zeros(3, 2), torch.zeros(2))
    assert not alike(UNLIKE[change](torch.zeros(3, 2)), torch.zeros(2))
    monkeypatch.setattr(_torch, "_guards", None)  # as with torch that was not tried
    assert not _torch.comparison_with([torch.ones(2)])(torch.ones(2))


WRITES = {
    "an entry": lambda d: d.__setitem__("a", 2),
    "a new entry": lambda d: d.__setitem__("c", 1),
    "the order": lambda d: d.__setitem__("a", d.pop("a")),
    "all of it": dict.clear,
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_versions_differ_after_each_write(write, kind, monkeypatch):
    written, empty = kind(a=1, b=[]), {}
    versions = _torch.versions_of([empty, written])
    before = versions()
    assert (versions() == before) is (kind is dict)  # others may be put in order unseen
    WRITES[write](written)
    assert versions() != before
    empty["a"] = 1
    assert versions() != versions()
    monkeypatch.setattr(_torch, "_guards", None)
    assert _torch.versions_of([{}])() != _torch.versions_of([{}])()

"""Memo: operators of layouts seen before are traced from memory, and nothing shows of it."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from abele import _torch
from abele.program.core import user_line
from abele.trace import operator_cache, tracer
from abele.trace.decompositions import PORTABLE_OPERATORS


def _block(x, weight, mean, var):
    y = F.conv2d(x, weight, padding=1)
    y = F.batch_norm(y, mean, var, training=True)
    return F.leaky_relu(y, 0.01)


def convolutions(x, w, n):
    mean, var = torch.zeros(2), torch.ones(2)
    images = x.view(1, 2, 3, 4)
    kernel = w.view(2, 2, 3, 3)
    for _ in range(3):
        images = _block(images, kernel, mean, var)
    loss = images.square().mean()
    return [loss, *torch.autograd.grad(loss, [x, w]), mean, var]


def same_argument_or_not(x, w, n):
    return [x * x, x * n, n * x, x + x, x + x.clone(), torch.cat([x, x]), torch.cat([x, n * x])]


def numbers_that_are_equal(x, w, n):
    return [x * 1, x * 1.0, x + 0.0, x + -0.0, (x * 0).copysign(-0.0), (x * 0).copysign(0.0)]


def views_and_copies(x, w, n):
    results = []
    for each in (x, x.t(), x.view(6, 4), x.view(6, 4).t(), x[1:], x[:11]):
        results += [each.reshape(-1), each.contiguous(), each + 1, each.sum(0)]
    return results


def in_place(x, w, n):
    results = []
    for factor in (2, 3, 2):
        y = x * factor
        z = y.relu_()
        z.add_(1)
        y[0].mul_(2)
        n.add_(1)
        results += [y, z, n * 1]
    return results


def types(x, w, n):
    return [x.to(kind) * 2 for kind in (torch.float64, torch.int32, torch.float64)]


def default_types(x, w, n):
    results = []
    before = torch.get_default_dtype()
    for kind in (torch.float64, before):
        torch.set_default_dtype(kind)
        results.append(torch.full((2,), 1.0))
    return results


def constants(x, w, n):
    factors = [torch.tensor(number) for number in (2.0, 3.0)]
    return [x * factor for factor in factors] + [x * torch.tensor([float(f)]) for f in factors]


def several_results(x, w, n):
    results = []
    for each in (x, x * 2, w):
        results += [*each.split(3), *each.max(1), *torch.var_mean(each, 0), each.unbind(1)[0]]
    return results


FUNCTIONS = [convolutions, same_argument_or_not, numbers_that_are_equal, views_and_copies]
FUNCTIONS += [in_place, types, constants, several_results]


def _values():
    torch.manual_seed(0)
    return [torch.randn(12, 2).requires_grad_(), torch.randn(12, 3).requires_grad_(), torch.ones(1)]


def _traced(function, *, remembered):
    with _torch.static_fakes() as mode:

        def body(*tensors):
            if not remembered:
                return function(*tensors)
            with operator_cache.remembering(mode):
                return function(*tensors)

        fakes = [mode.from_tensor(value) for value in _values()]
        fakes = [f.requires_grad_(v.requires_grad) for f, v in zip(fakes, _values(), strict=True)]
        table = {"decomposition_table": PORTABLE_OPERATORS, "record_stack_traces": True}
        with torch.enable_grad():
            return _torch.make_fx(body, **table)(*fakes)


def _described(graph):
    names = {node: f"n{index}" for index, node in enumerate(graph.graph.nodes)}
    for node in graph.graph.nodes:
        target = "" if node.op == "placeholder" else node.target
        arguments = torch.fx.map_arg((node.args, node.kwargs), names.__getitem__)
        value = tracer._layout(node.meta.get("val"))
        yield f"{node.op} {target} {arguments} {value} {node.meta.get('tensor_meta')}"


@pytest.mark.parametrize("function", [*FUNCTIONS, default_types])
def test_the_trace_is_that_of_the_tracer(function):
    reference, result = (_traced(function, remembered=each) for each in (False, True))
    assert list(_described(result)) == list(_described(reference))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_it_computes_what_the_function_does(function):
    expected = function(*_values())
    graph = _traced(function, remembered=True)
    with torch.no_grad():
        program = graph(*_values())
    for one, other in zip(expected, program, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("remembered", [False, True])
def test_equal_operators_run_once_without_data(remembered, monkeypatch):
    calls = []
    original = _torch.FakeTensorMode.dispatch

    def dispatch(mode, function, types, args=(), kwargs=None):
        calls.append(function)
        return original(mode, function, types, args, kwargs or {})

    monkeypatch.setattr(_torch.FakeTensorMode, "dispatch", dispatch)

    def body(x, w, n):
        for _ in range(10):
            x = torch.tanh(x)
        return [x]

    _traced(body, remembered=remembered)
    assert calls.count(torch.ops.aten.tanh.default) == (1 if remembered else 10)


class Module(torch.nn.Module):
    def forward(self, x):
        y = torch.tanh(x)
        y = torch.tanh(y)
        return torch.tanh(y) + torch.tanh(x)


def test_each_node_has_the_line_of_its_own_call():
    lines = []
    for remembered in (False, True):
        graph = _traced(lambda x, w, n: [Module()(x)], remembered=remembered)
        nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
        lines.append([node.meta["stack_trace"] for node in nodes])
    assert lines[0] == lines[1]
    first = Module.forward.__code__.co_firstlineno
    tanh = [user_line(trace)[1] - first for trace in lines[1] if "tanh" in trace]
    assert sorted(set(tanh)) == [1, 2, 3]


def test_nodes_outside_of_forward_have_no_line():
    graph = _traced(lambda x, w, n: [x * 2, x * 2], remembered=True)
    assert all("stack_trace" not in node.meta for node in graph.graph.nodes)


def test_values_cannot_be_read_the_second_time_either():
    def body(x, w, n):
        for _ in range(2):
            with pytest.raises(_torch.DataDependentOutputException):
                x.sum().item()
        return [x]

    _traced(body, remembered=True)

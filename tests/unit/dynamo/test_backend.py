"""``torch.compile(model, backend="abele")`` on the interpreter has plain PyTorch's bits."""

import gc
import importlib.metadata
import warnings

import pytest
import torch
from torch import nn

from abele import FallbackWarning
from abele.compilation.executable import Failure
from abele.dynamo import backend, graphs, running
from abele.dynamo.entry import _warn_of_mode, _warn_plain
from abele.errors import TargetError
from abele.runtime.proving import TakeOver
from helpers.dynamo_models import (
    MODULES,
    Broken,
    Counting,
    Pictures,
    Views,
    compiled,
    graphs_of,
    loss_of,
    made,
    trained,
)

# Dynamo looks at the gradient of a tensor between two graphs.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def dynamo(monkeypatch):
    """Dynamo without what earlier tests compiled, and warnings that were not yet given."""
    monkeypatch.setenv("ABELE_TARGET", "reference")
    torch.compiler.reset()
    for once in (_warn_of_mode, _warn_plain, running._warn_refused):
        once.cache_clear()
    gc.collect()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
def test_twenty_steps_are_bitwise_those_of_plain_pytorch(kind):
    plain, other = made(kind), made(kind)
    expected = trained(plain, plain)
    found: list[torch.Tensor] = []
    built = graphs_of(lambda: found.append(trained(other, compiled(other))))
    if kind is Views:  # autograd sums the gradients of views in another order
        torch.testing.assert_close(found[0], expected)
    else:
        assert torch.equal(found[0], expected)
        assert all(map(torch.equal, plain.state_dict().values(), other.state_dict().values()))
    assert {graph.phase for graph in built} == {"forward", "backward", "inference"}
    assert {graph.refused for graph in built} == {None}
    assert {graph.record and graph.record.target for graph in built} == {"reference"}


def test_the_name_is_found_by_torch():
    found = importlib.metadata.entry_points(group="torch_dynamo_backends")
    assert [each.load() for each in found if each.name == "abele"][:1] == [backend]
    function = torch.compile(lambda x: x.sin() + 1, backend="abele")
    assert torch.equal(function(torch.zeros(2)), torch.ones(2))


def test_each_shape_gets_a_program():
    function = compiled(lambda x: x.sin() * x.shape[0])
    shapes = [(2, 3), (4, 3), (5, 3), (4, 3), (5, 7)]
    values = [torch.randn(shape) for shape in shapes]
    found: list[torch.Tensor] = []
    built = graphs_of(lambda: found.extend(map(function, values)))
    assert all(map(torch.equal, found, [x.sin() * x.shape[0] for x in values]))
    assert len(built) == 4
    programs = [graph.record.lowerings.keys() for graph in built if graph.record]
    assert programs == [{"inference_graph"}] * 4


def test_a_function_asked_for_all_shapes_gets_a_program_for_each():
    function = torch.compile(lambda x: x.sin().sum(), backend=backend, dynamic=True)
    for rows in (2, 3, 4):
        x = torch.randn(rows, rows + 1)
        assert torch.equal(function(x), x.sin().sum())


def test_parameters_are_read_where_they_are_at_each_call():
    module = nn.Linear(3, 2)
    called, x = compiled(module), torch.randn(4, 3)
    with torch.no_grad():
        called(x)
        module.weight.mul_(2)
        assert torch.equal(called(x), module(x))
        module.weight.data = torch.randn(2, 3)
        assert torch.equal(called(x), module(x))


def test_results_share_memory_as_in_plain_pytorch():
    module = made(Views)
    x = torch.randn(4, 3, 8, 8)
    plain, found = module(x), compiled(module)(x)
    assert all(map(torch.equal, plain, found))
    assert [each.stride() for each in plain] == [each.stride() for each in found]
    memory = [each.untyped_storage().data_ptr() for each in found]
    assert memory[1] == memory[2] == memory[3] == memory[6]  # views of one result
    assert memory[5] == module.weight.untyped_storage().data_ptr()
    assert memory[0] not in memory[1:]


def test_a_result_is_not_overwritten_by_the_next_call():
    called = compiled(nn.Linear(3, 2))
    first = called(torch.ones(1, 3))
    kept = first.detach().clone()
    called(torch.zeros(1, 3))
    assert torch.equal(first, kept)


def test_gradients_of_inputs_and_retained_graphs():
    function = compiled(lambda x, w: (x @ w).tanh())
    x, w = torch.randn(2, 3, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    result = function(x, w).sum()
    first = torch.autograd.grad(result, [x, w], retain_graph=True)
    again = torch.autograd.grad(result, [x, w])
    plain = torch.autograd.grad((x @ w).tanh().sum(), [x, w])
    assert all(map(torch.equal, first, plain))
    assert all(map(torch.equal, again, plain))


def test_dropout_has_the_numbers_of_plain_pytorch_also_transposed():
    def function(x):
        return nn.functional.dropout(nn.functional.dropout(x, 0.35).t(), 0.15)

    x, results = torch.randn(6, 8, requires_grad=True), []
    for each in (function, compiled(function)):
        torch.manual_seed(3)
        y = each(x)
        results.append((y, *torch.autograd.grad((y * y).sum(), x), torch.rand(1)))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_interpolation_has_the_bits_of_plain_pytorch(mode):
    def function(x):
        return nn.functional.interpolate(x, scale_factor=2, mode=mode)

    x = torch.randn(1, 2, 5, 5, requires_grad=True)
    called = compiled(function)
    assert torch.equal(called(x), function(x))
    found, plain = (torch.autograd.grad(f(x).sin().sum(), x)[0] for f in (called, function))
    assert torch.equal(found, plain)


def test_a_buffer_written_before_it_is_read_keeps_its_gradient_right():
    # torch 2.13's own compiler computes the buffer's next value in backward once more.
    plain, other = made(Counting), made(Counting)
    called = compiled(other)
    for _ in range(3):
        x = torch.randn(4, 3, 8, 8)
        plain(x).backward()
        called(x).backward()
    assert torch.equal(plain.head.weight.grad, other.head.weight.grad)
    assert torch.equal(plain.mean, other.mean)


def test_a_graph_break_gives_programs_on_both_sides():
    module = made(Broken)
    called, x = compiled(module), torch.randn(4, 3, 8, 8)
    built = graphs_of(lambda: called(x).backward())
    assert sorted(graph.phase for graph in built) == ["backward", "backward", "forward", "forward"]


def test_a_backward_that_never_runs_is_not_built():
    module = made(Pictures)
    called = compiled(module)
    kept = []
    built = graphs_of(lambda: kept.append(called(torch.randn(4, 3, 8, 8))))
    assert [graph.record is not None for graph in built if graph.phase == "forward"] == [True]
    assert not [graph for graph in built if graph.phase == "backward" and graph.record]


# -- what programs cannot have ---------------------------------------------------------------------


def _complex(x):
    return torch.fft.rfft(x).abs().sum()


def _types(x):
    return x.view(torch.int32).sum() + x.sum()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_complex, r"inference graph .* operator by operator, .*complex \(aten._fft_r2c.default\)"),
        (_types, r"aten.view.dtype reads a tensor as one of another type"),
    ],
)
def test_torch_runs_graphs_that_are_no_programs_with_one_warning(function, reason):
    called, x = compiled(function), torch.randn(4, 8)
    with pytest.warns(FallbackWarning, match=reason):
        found = called(x)
    assert torch.equal(found, function(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        called(x)
        compiled(function)(x)


def test_a_fallback_trains_with_the_same_bits():
    x = torch.randn(4, 8, requires_grad=True)
    with pytest.warns(FallbackWarning) as warned:
        (found,) = torch.autograd.grad(compiled(_complex)(x), x)
    assert torch.equal(found, torch.autograd.grad(_complex(x), x)[0])
    assert {graph.phase for graph in graphs() if graph.refused} == {"forward", "backward"}
    assert len(warned) == 2


def test_what_ahead_of_time_autograd_cannot_trace_runs_as_plain_pytorch(monkeypatch):
    def refuse(*args, **kwargs):
        raise NotImplementedError("no such tensor")

    monkeypatch.setattr("abele.dynamo.entry.aot.differentiated", refuse)
    called, x = compiled(lambda x: x.sin()), torch.randn(3)
    with pytest.warns(FallbackWarning, match="runs as plain PyTorch: NotImplementedError: no such"):
        assert torch.equal(called(x), x.sin())


def test_an_index_out_of_range_is_an_error_of_the_call():
    module = nn.Embedding(4, 2)
    called = compiled(module)
    called(torch.tensor([3]))
    with pytest.raises(IndexError, match=r"index out of range|takes the indices 0 to 3"):
        called(torch.tensor([4]))
    assert torch.equal(called(torch.tensor([1])), module(torch.tensor([1])))


# -- options and the environment -------------------------------------------------------------------


def failing(match, **options):
    with pytest.raises(Exception, match=match) as caught:
        compiled(lambda x: x.sin(), **options)(torch.randn(3))
    return caught.value


def test_options_are_checked():
    error = failing(r"given the options \['caches'\]. It has cache and start", caches="x")
    assert isinstance(error.inner_exception, TargetError)
    failing("start='soon'. Use one of tiered, wait, interpret", start="soon")


def test_a_mode_of_inductor_has_no_effect_and_says_so():
    function = torch.compile(lambda x: x.sin(), backend=backend, mode="max-autotune")
    with pytest.warns(RuntimeWarning, match="mode='max-autotune' has no effect"):
        function(torch.zeros(2))


@pytest.mark.parametrize("name", ["nowhere", "cuda"])
def test_a_target_that_cannot_run_the_graph_is_an_error(monkeypatch, name):
    monkeypatch.setenv("ABELE_TARGET", name)
    with pytest.raises(TargetError, match=f"ABELE_TARGET={name} was|Target {name!r} does not"):
        compiled(lambda x: x.sin())(torch.randn(3))


# -- compiled programs -----------------------------------------------------------------------------


COMPILED = [
    pytest.param(each, marks=() if each in MODULES[:2] else pytest.mark.long) for each in MODULES
]


@pytest.mark.compiler
@pytest.mark.parametrize("kind", COMPILED, ids=lambda kind: kind.__name__)
def test_compiled_steps_are_within_tolerance(kind, monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "cpu")
    plain, other = made(kind), made(kind)
    expected, found = trained(plain, plain, 3), trained(other, compiled(other), 3)
    near = {"rtol": 2e-2, "atol": 1e-3} if kind.__name__ == "Precise" else {}
    torch.testing.assert_close(found, expected, **(near or {"rtol": 1e-3, "atol": 1e-4}))


@pytest.mark.compiler
def test_compiled_results_have_the_strides_of_plain_pytorch(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "cpu")
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    function = compiled(lambda x: nn.functional.max_pool2d(x * 2, 2))
    for _ in range(2):
        result = function(x)
        assert result.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(result, nn.functional.max_pool2d(x * 2, 2))
    assert torch.autograd.grad(result.sum(), x)[0].stride() == x.stride()


@pytest.mark.compiler
@pytest.mark.filterwarnings("error::abele.ComparisonWarning")
def test_a_parameter_may_be_expanded(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "cpu")
    for values in (torch.ones(1, 8), torch.arange(8.0)):
        weight, x = values.expand(4, 8).requires_grad_(), torch.randn(3, 8)
        result = compiled(lambda x, weight: x @ weight.t())(x, weight)
        torch.testing.assert_close(result, x @ weight.t())
        result.sum().backward()
        assert torch.equal(weight.grad, x.sum(0).expand(4, 8))


@pytest.mark.compiler
def test_the_next_process_finds_programs_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "cpu")

    def run():
        module = made(Pictures)
        loss = loss_of(compiled(module, cache=tmp_path)(torch.ones(4, 3, 8, 8)))
        loss.backward()
        return module.head.weight.grad

    first, later = [], []
    built = graphs_of(lambda: first.append(run()))
    assert {graph.record.cache for graph in built} == {"miss"}
    torch.compiler.reset()
    built = graphs_of(lambda: later.append(run()))
    assert {graph.record.cache for graph in built} == {"hit"}
    assert torch.equal(first[0], later[0])


@pytest.mark.compiler
def test_first_calls_are_interpreted_until_compiled_programs_agree(monkeypatch):
    monkeypatch.delenv("ABELE_TARGET")
    monkeypatch.setenv("ABELE_START", "tiered")
    monkeypatch.setenv("ABELE_SWAP_AT", "2")
    module, plain = made(Pictures), made(Pictures)
    called = compiled(module)

    def calls(count):
        for _ in range(count):
            x = torch.randn(4, 3, 8, 8)
            assert torch.allclose(called(x), plain(x), rtol=1e-4)

    with torch.no_grad():
        (graph,) = graphs_of(lambda: calls(2))
        assert graph.record.running.interpreted
        calls(2)
    assert not graph.record.running.interpreted
    assert graph.record.running.since == 2
    assert "one micro-batch through both" in graph.record.running.check
    assert torch.allclose(module.body[1].running_mean, plain.body[1].running_mean)


@pytest.mark.compiler
def test_programs_that_cannot_be_compiled_stay_interpreted(monkeypatch):
    monkeypatch.delenv("ABELE_TARGET")
    monkeypatch.setenv("ABELE_START", "tiered")
    monkeypatch.setenv("ABELE_SWAP_AT", "1")
    module = nn.Linear(3, 2)
    called, x = compiled(module), torch.randn(4, 3)
    with torch.no_grad():
        called(x)
        monkeypatch.setattr(TakeOver, "_arrived", lambda self, updates: Failure("no compiler"))
        with pytest.warns(UserWarning, match="Compiled programs do not take over: no compiler"):
            assert torch.equal(called(x), module(x))
        assert torch.equal(called(x), module(x))

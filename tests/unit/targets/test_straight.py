"""A graph as one function: the same operators, values freed after their last use."""

import gc
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from abele.targets import interpreter

aten = torch.ops.aten
X, ROWS = torch.rand(4, 4) + 0.5, torch.rand(4) + 0.5
# Those that are not called with one or two matrices.
ARGUMENTS = {
    aten.addcdiv.default: (X, X, X),
    aten.addcmul.default: (X, X, X),
    aten.addmm.default: (ROWS, X, X),
    aten.bmm.default: (X[None], X[None]),
    aten.cat.default: ([X, X], 1),
    aten.expand.default: (ROWS, [4, 4]),
    aten.lerp.Scalar: (X, X, 0.1),
    aten.mean.dim: (X, [1]),
    aten.native_layer_norm.default: (X, [4], ROWS, None, 1e-5),
    aten.permute.default: (X, [1, 0]),
    aten.pow.Scalar: (0.9, ROWS),
    aten.pow.Tensor_Scalar: (X, 2),
    aten.rsub.Scalar: (X, 1),
    aten.select.int: (X, 0, 1),
    aten.squeeze.dim: (X[None], 0),
    aten.stack.default: ([X, X],),
    aten.sum.dim_IntList: (X, [0], True),
    aten.transpose.int: (X, 0, 1),
    aten.unbind.int: (X,),
    aten.unsafe_split.Tensor: (X, 2, 1),
    aten.unsqueeze.default: (X, 0),
    aten.where.self: (X > 1, X, X),
}
TWO = {"add", "copy_", "div", "maximum", "mm", "mul", "sub"}


class Calls(TorchDispatchMode):
    """Notes what is called with what."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append((function, args))
        return function(*args, **(kwargs or {}))


def arguments_of(operator):
    name = operator.name().partition("::")[2].partition(".")[0]
    return ARGUMENTS.get(operator, (X, X) if name in TWO else (X,))


@pytest.mark.parametrize(
    "operator", [each for each in interpreter._DIRECT if each is not aten.view.default], ids=str
)
def test_torchs_functions_call_the_operators_they_stand_for(operator):
    arguments = arguments_of(operator)
    plain, direct = Calls(), Calls()
    with torch.no_grad(), plain:
        operator(*arguments)
    with torch.no_grad(), direct:
        interpreter._DIRECT[operator](*arguments)
    # Calling the operator gives what is called with it alone, which its function may spell out.
    assert [function for function, _ in direct.seen] == [function for function, _ in plain.seen]
    assert operator in [function for function, _ in plain.seen]


def graph_of(build):
    """A graph that ``build`` makes of a graph and its only input."""
    graph = torch.fx.Graph()
    graph.output(build(graph, graph.placeholder("x")))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def test_a_view_copies_where_a_result_is_laid_out_in_another_way():
    made = graph_of(lambda graph, x: (graph.call_function(aten.view.default, (x, [16])),))
    (result,) = interpreter.function_of(made)([X.t()])
    assert torch.equal(result, X.t().reshape(16))


@pytest.mark.parametrize("number", [2, 0.5, float("nan"), float("-inf"), 1 + 2j], ids=str)
@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
def test_numbers_in_the_place_of_tensors_are_what_they_are_to_operators(number, first):
    def build(graph, x):
        return (graph.call_function(aten.mul.Tensor, (number, x) if first else (x, number)),)

    (result,) = interpreter.function_of(graph_of(build))([X])
    assert torch.equal(result.isnan(), (X * number).isnan())
    assert torch.equal(result.nan_to_num(), (X * number).nan_to_num())
    assert result.dtype == (X * number).dtype


def test_values_are_freed_after_their_last_use():
    known, alive = [], []

    def made(x):
        known.append(weakref.ref(result := x + 1))
        return result

    def look(x):
        alive.append([each() is not None for each in known])
        return x

    def build(graph, x):
        unused = graph.call_function(made, (x,))
        used = graph.call_function(made, (x,))
        graph.call_function(look, (unused,))
        doubled = graph.call_function(made, (used,))
        graph.call_function(look, (x,))
        return [doubled]

    (result,) = interpreter.function_of(graph_of(build))([X])
    assert alive == [[True, True], [False, False, True]]
    assert torch.equal(result, X + 2)


@pytest.mark.parametrize("frees", [False, True])
def test_inputs_are_freed_after_their_last_use_only_if_asked(frees):
    known, alive = [], []

    def look(x):
        alive.append(known[0]() is not None)
        return x

    def build(graph, x):
        first = graph.call_function(torch.add, (x, 1))
        return [graph.call_function(look, (first,))]

    given = [torch.zeros(2)]
    known.append(weakref.ref(given[0]))
    interpreter.function_of(graph_of(build), frees_inputs=frees)(given)
    assert alive == [not frees]
    assert len(given) == (0 if frees else 1)


def test_constants_and_dtypes_are_bound():
    def build(graph, x):
        constant = graph.get_attr("rows")
        half = graph.call_function(torch.Tensor.to, (x,), {"dtype": torch.float16})
        return {"sum": graph.call_function(aten.add.Tensor, (x, constant)), "half": half}

    root = torch.nn.Module()
    root.rows = ROWS
    graph = torch.fx.Graph()
    graph.output(build(graph, graph.placeholder("x")))
    result = interpreter.function_of(torch.fx.GraphModule(root, graph))([X])
    assert torch.equal(result["sum"], X + ROWS)
    assert result["half"].dtype is torch.float16


def test_a_function_is_freed_with_its_last_reference():
    def build(graph, x):
        return [graph.call_function(torch.add, (x, 1))]

    gc.disable()
    try:
        alive = weakref.ref(interpreter.function_of(graph_of(build)))
        assert alive() is None, "what it is bound to would live until a collection"
    finally:
        gc.enable()

"""Each private name of ``abele._torch.aot`` exists and does what the backend relies on."""

import pytest
import torch
from torch.nn import functional

from abele._torch import aot
from abele.errors import CaptureError


@pytest.fixture(autouse=True)
def dynamo():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Seen:
    """A backend that notes the graphs and what each function of ``aot`` says of them."""

    def __init__(self):
        self.graphs: dict[str, torch.fx.GraphModule] = {}
        self.static: frozenset[int] = frozenset()
        self.examples: list[object] = []

    def __call__(self, graph, inputs):
        self.examples = aot.without_symbols(graph, inputs)

        def compiler(name):
            def compile_graph(graph, inputs):
                self.graphs[name] = graph
                self.static |= aot.static_inputs() if name == "forward" else frozenset()
                return aot.boxed(lambda given: graph(*given))

            return compile_graph

        return aot.differentiated(
            graph,
            self.examples,
            forward=compiler("forward"),
            backward=compiler("backward"),
            inference=compiler("inference"),
            decompositions={},
        )


def test_a_graph_is_differentiated_and_its_weights_are_known():
    seen, module = Seen(), torch.nn.Linear(3, 2)
    x = torch.randn(4, 3)
    torch.compile(module, backend=seen)(x).tanh().sum().backward()
    assert set(seen.graphs) == {"forward", "backward"}
    assert len(seen.static) == 2  # weight and bias
    (plain,) = torch.autograd.grad(module(x).tanh().sum(), [module.weight])
    assert torch.equal(module.weight.grad, plain)


def test_without_gradients_there_is_one_graph():
    seen, module = Seen(), torch.nn.Linear(3, 2)
    with torch.no_grad():
        torch.compile(module, backend=seen)(torch.randn(4, 3))
    assert set(seen.graphs) == {"inference"}


def test_a_boxed_function_may_free_its_inputs():
    given = [1, 2]
    taking = aot.boxed(lambda inputs: [inputs.pop()])
    assert (taking(given), given) == ([2], [1])
    assert getattr(taking, "_boxed_call", False)


def test_backward_reads_no_buffer_that_forward_wrote():
    seen, mean = Seen(), torch.zeros(3)

    def function(w, x):
        mean.add_(x.mean(0))
        return (x * w * mean).sum()

    w, x = torch.randn(3, requires_grad=True), torch.randn(4, 3)
    torch.compile(function, backend=seen)(w, x).backward()
    assert torch.allclose(w.grad, (x * x.mean(0)).sum(0))
    (write,) = seen.graphs["forward"].graph.find_nodes(
        op="call_function", target=torch.ops.aten.copy_.default
    )
    names = {node.name for node in seen.graphs["backward"].graph.find_nodes(op="placeholder")}
    assert write.args[0].name not in names


def test_cheap_results_are_computed_again_in_backward():
    seen = Seen()
    x = torch.randn(64, 64, requires_grad=True)
    torch.compile(lambda x: (x.sin().exp() * x).cos().sum(), backend=seen)(x).backward()
    saved = seen.graphs["backward"].graph.find_nodes(op="placeholder")
    assert len(saved) == 3  # x, one of three results, and the gradient of the sum


def test_sizes_that_vary_are_fixed_and_guarded():
    seen = Seen()
    function = torch.compile(lambda x: functional.relu(x) * x.shape[0], backend=seen, dynamic=True)
    found = []
    for rows in (3, 5, 3):
        found.append(function(torch.ones(rows, 4))[0, 0].item())
        sizes = [tuple(each.shape) for each in seen.examples if isinstance(each, torch.Tensor)]
        assert all(type(size) is int for shape in sizes for size in shape)
    assert found == [3.0, 5.0, 3.0]


def test_a_size_that_depends_on_values_is_refused():
    graph = torch.fx.Graph()
    graph.placeholder("n")
    graph.output(())

    class Unknown(torch.SymInt):
        def __init__(self):
            pass

        def __int__(self):
            raise RuntimeError("depends on data")

    with pytest.raises(CaptureError, match="a size depends on the values of a tensor"):
        aot.without_symbols(torch.fx.GraphModule({}, graph), [Unknown()])


def test_errors_that_steer_dynamo_are_told_from_others():
    from torch._dynamo.exc import Unsupported  # noqa: TID251 - the name that is tested

    assert aot.steers_dynamo(Unsupported("it goes another way", "no"))
    assert not aot.steers_dynamo(RuntimeError("no"))


def test_plain_tensors_are_not_sharded():
    assert not aot.sharded([torch.ones(2), 3])

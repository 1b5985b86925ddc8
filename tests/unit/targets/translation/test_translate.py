"""From a graph to operations: what becomes code, what becomes a place, and what stays torch's."""

import pytest
import torch

from abele import Program, Role, Slot, passes
from abele.compilation.serialization import from_text, to_text
from abele.targets.cpu.emitted.calls import HANDLERS
from abele.targets.cpu.emitted.lowering import Emitted, planned_code
from abele.targets.translation.operations import Call, Foreign, Pointwise
from abele.targets.translation.places import Kind
from abele.targets.translation.pointwise import TYPES
from abele.targets.translation.translate import Translator
from helpers import emitted_programs
from helpers.emitted_programs import traced

X, Y = torch.linspace(-2, 3, 12).reshape(3, 4), torch.linspace(1, -1, 12).reshape(3, 4)


def plan(function, *inputs, state=()):
    case = traced("plan", function, inputs, state)
    return planned_code(passes.run_only(passes.run(case.program), Emitted.passes))


def kinds(made):
    return [type(each) for each in made.translation.operations]


def test_views_leave_no_code():
    made = plan(lambda x: x.t()[1:].unflatten(0, (3, 1)).exp(), X)
    assert kinds(made) == [Pointwise]
    assert made.translation.operations[0].reads[0].offset == 1


def test_a_view_that_needs_another_order_is_a_copy():
    assert kinds(plan(lambda x: (x * 2).t().reshape(-1) * x.flatten(), X)) == [Pointwise] * 3


def test_joined_tensors_are_made_in_their_places():
    made = plan(lambda x, y: torch.cat([x * 2, y + 1]), X, Y)
    assert kinds(made) == [Pointwise] * 2
    assert made.size == 0


def test_a_tensor_that_is_joined_twice_is_copied_once():
    made = plan(lambda x: (lambda y: torch.cat([y, y]))(x * 2), X)
    assert kinds(made) == [Pointwise] * 2


def test_a_result_is_made_where_the_caller_gets_it():
    made = plan(lambda x: x * 2, X)
    assert [each.buffer.kind for each in made.translation.outputs] == [Kind.OUTPUT]
    assert made.size == 0


def test_a_slot_of_a_larger_tensor_is_returned_as_a_copy():
    made = plan(lambda x: (x * 2)[1:], X)
    (output,) = made.translation.outputs
    assert output.shape == (2, 4)
    assert output.whole


def test_what_nobody_has_written_down_is_called_as_torch_has_it():
    made = plan(lambda x: torch.special.i0(x * 2) + 1, X)
    assert kinds(made) == [Pointwise, Foreign, Pointwise]


def test_products_are_calls():
    made = plan(lambda x, y: x @ y.t(), X, Y)
    (call,) = made.translation.operations
    assert isinstance(call, Call)
    assert "abele::product(3, 3, 4, " in call.text


def test_a_slot_that_gets_a_view_of_itself_is_read_before_it_is_written():
    graph = torch.fx.Graph()
    slot = graph.placeholder("slot")
    turned = graph.call_function(torch.ops.aten.permute.default, (slot, [1, 0]))
    graph.call_function(torch.ops.aten.copy_.default, (slot, turned))
    graph.output([])
    for node, value in zip(graph.nodes, (X[:, :3], X[:, :3].t(), X[:, :3]), strict=False):
        node.meta["val"] = value.contiguous() if node is slot else value
    state = Slot(name="slot", role=Role.BUFFER, shape=(3, 3), dtype=torch.float32, mutated=True)
    module = torch.fx.GraphModule({}, graph)
    made = Translator(
        Program(name="turn", graph=module, inputs=(state,), outputs=()), HANDLERS, TYPES
    )
    read, written = made.operations
    assert read.reads[0].buffer is written.writes[0].buffer
    assert read.writes[0].buffer is not written.writes[0].buffer


def swapped(x, a, b):
    kept = a.clone()
    a.copy_(b)
    b.copy_(kept)
    return x + a


def turned(x, a):
    a.copy_(a.t())
    return x[:, :3] + a


def counted(x, a):
    a.add_(1)
    return x * a


def halved(x):
    return x.half()[1:] + 1, x.half(), x.half()[1:]


def seen_as_bits(x):
    bits = (x * 2).view(torch.int32)
    return bits + 1, (x * 3).view(torch.int32), x.exp()


def in_one_dimension(x):
    return (x[:1, None] * 2).exp().reshape(-1) + 1, x.reshape(1, 12).expand(2, 12).sum(0)


CASES = {
    "slots that change their values": (swapped, [X], [X, Y]),
    "a slot that is turned": (turned, [X], [torch.randn(3, 3)]),
    "a slot that is counted": (counted, [X], [torch.tensor(3)]),
    "half results": (halved, [X], []),
    "bits of memory that is used again": (seen_as_bits, [X], []),
    "dimensions of one element": (in_one_dimension, [X], []),
    "complex numbers": (lambda x: torch.view_as_complex(x.view(3, 2, 2)).abs(), [X], []),
    "one result twice": (lambda x: [x * 2] * 2, [X], []),
    "an input as it is": (lambda x, y: (x, y.t(), x[1:]), [X, Y], []),
    "a constant": (lambda x: (torch.tensor([1.5, 2.5, -1.0, 0.0]), x * torch.eye(3, 4)), [X], []),
    "nothing in it": (
        lambda x: (x.sum(), x.sum(0), x.mean(1), x + 1, torch.cat([x, x]), x.t() @ x),
        [torch.zeros(0, 3)],
        [],
    ),
    "infinities": (
        lambda i, x: (
            i < float("inf"),
            x * float("nan"),
            torch.full((3,), float("-inf")) + x[:, 0],
        ),
        [torch.arange(3), X],
        [],
    ),
    "integers": (
        lambda i: (i * 2.5, i == 2.5, i / 2, i.bool(), -i, i.to(torch.uint8), i.double() + 1),
        [torch.arange(-3, 5)],
        [],
    ),
    "mixed types": (
        lambda x, i: (x.double() * x, x * i[:, None], i + (x[:, 0] > 0), x.int() // 2, i * True),
        [X, torch.arange(3)],
        [],
    ),
}


@pytest.fixture(scope="module")
def outcomes():
    cases = [traced(name, *case) for name, case in CASES.items()]
    return {each.name: each for each in emitted_programs.outcomes(cases)}


@pytest.mark.compiler
@pytest.mark.parametrize("name", CASES)
def test_as_the_interpreter(outcomes, name):
    assert outcomes[name].plan is not None
    assert outcomes[name].difference() is None


def written(program):
    """All that a payload has to agree with: the code, and how it is called."""
    made = planned_code(passes.run_only(passes.run(program), Emitted.passes))
    table = [(each.kind, each.index, each.size) for each in made.source.table]
    parts = [
        str(part.part_of.target) if isinstance(part, Foreign) else part
        for part in made.source.parts
    ]
    outputs = [(each.shape, each.stride, each.offset) for each in made.translation.outputs]
    return made.source.text, table, parts, outputs, made.translation.constants, made.size


@pytest.mark.parametrize("seed", range(6))
def test_equal_programs_have_equal_plans(seed):
    for case in emitted_programs.of_network(seed):
        read = from_text(*to_text(case.program))
        assert written(case.program) == written(case.program) == written(read)

"""Cutting a program: parts that run one after another compute what the whole computes."""

import pytest
import torch

from abele import passes
from abele.program import Role, returned_nodes, writes
from abele.program.cut import cut
from abele.targets.reference import Interpreter
from helpers.runs import captured

X = torch.arange(12.0).reshape(4, 3) / 8


class Counted(torch.nn.Module):
    """A buffer that is read, written, and read again; results of several kinds."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 3))
        self.register_buffer("total", torch.ones(3))

    def forward(self, x):
        before = self.total.exp()
        self.total += x.sum(0)
        hidden = (x @ self.weight).t().sigmoid()
        return hidden, hidden.t() * self.total + before, x


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    return passes.run(captured(Counted(), (X,)).programs[0])


def placed(program, borders):
    """The part of every operation, by its position in the program."""
    nodes = [n for n in program.graph.graph.nodes if n.op == "call_function"]
    parts = {n: sum(i >= border for border in borders) for i, n in enumerate(nodes)}
    for node in nodes:
        if writes(node):
            parts[node] = max(parts[n] for n in node.all_input_nodes if n in parts)
    return parts | {n: 0 for n in returned_nodes(program.graph) if n not in parts}


def run(program, state, inputs):
    """The outputs by name; state is written in place."""
    arguments = [
        inputs[slot.name] if slot.role is Role.INPUT else state[slot.name]
        for slot in program.inputs
    ]
    return Interpreter().compile(program).run(arguments)


def fresh():
    torch.manual_seed(0)
    return {name: value.detach().clone() for name, value in Counted().state_dict().items()}


@pytest.mark.parametrize("shared", [{}, {0: "result.0", 1: "result.1", 2: "result.2"}])
@pytest.mark.parametrize("borders", [(0, 2), (2, 4), (3, 5), (4, 9), (6, 7), (20, 21)], ids=str)
def test_parts_compute_what_the_whole_computes(program, borders, shared):
    parts = cut(program, placed(program, borders), ("a", "b", "c"), shared=shared)
    state, values, results = fresh(), {"input0": X}, {}
    for part in parts:
        if part.program is None:
            continue
        outputs = run(part.program, state, values)
        values |= zip(part.gives, outputs, strict=True)
        slots = [slot.name for slot in part.program.outputs]
        results |= zip(slots, outputs, strict=True)
    whole = fresh()
    for slot, expected in zip(program.outputs, run(program, whole, {"input0": X}), strict=True):
        assert torch.equal(results[slot.name], expected)
    assert all(torch.equal(state[name], whole[name]) for name in whole)


def test_what_only_one_part_is_given_others_take_from_it(program):
    parts = cut(program, placed(program, (0, 0)), ("a", "b", "c"), shared={}, homes={"input0": 1})
    assert [part.takes for part in parts] == [{}, {}, {"value.0": 1}]
    assert [slot.name for slot in parts[1].program.inputs] == ["input0"]


class Twice(torch.nn.Module):
    def forward(self, x):
        first = x.sigmoid()
        return first, first.tanh()


@pytest.mark.parametrize(
    ("shared", "given"), [({}, ("output0", "value.0")), ({0: "first"}, ("first",))]
)
def test_a_result_is_the_callers_alone_unless_parts_may_read_it(shared, given):
    program = passes.run(captured(Twice(), (X,)).programs[0])
    nodes = [n for n in program.graph.graph.nodes if n.op == "call_function"]
    parts = {node: int("tanh" in node.name) for node in nodes}
    for node in nodes:
        parts[node] = max(parts[n] for n in (node, *node.all_input_nodes) if n in parts)
    first, second = cut(program, parts, ("a", "b"), shared=shared)
    assert first.gives == given
    assert dict(second.takes) == {given[-1]: 0}

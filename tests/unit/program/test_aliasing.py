"""Who lives in whose memory and for how long, on graphs small enough to count by hand."""

import operator

import pytest
import torch
from torch import nn

from abele.ops import memory_layout  # noqa: F401 - registers an operator that returns a view
from abele.program import memory
from abele.program.aliasing import SHARES, Aliases, Liveness, LiveRange, base, kept_alive, written
from helpers.runs import captured

aten = torch.ops.aten
X = torch.ones(2, 3)  # 24 bytes


class Graph:
    """A graph that is written down call by call; each node knows its value."""

    def __init__(self):
        self.graph = torch.fx.Graph()

    def input(self, name="x", value=X):
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    def call(self, target, *args, **kwargs):
        node = self.graph.call_function(target, args, kwargs)
        values, named = torch.fx.map_arg((args, kwargs), lambda each: each.meta["val"])
        node.meta["val"] = target(*values, **named)
        return node

    def returned(self, *nodes):
        self.graph.output(list(nodes))
        return Liveness(self.graph)


@pytest.fixture
def made():
    return Graph()


def test_a_view_lives_in_its_argument_through_any_number_of_views(made):
    x = made.input()
    y = made.call(aten.relu.default, x)
    turned = made.call(aten.t.default, y)
    flat = made.call(aten.as_strided.default, turned, [6], [1])
    assert base(flat) is base(turned) is base(y) is y
    assert base(x) is x
    assert list(kept_alive(flat)) == [flat, turned, y]


def test_parts_of_a_list_of_views_share_and_results_of_an_operator_do_not(made):
    x = made.input()
    parts = made.call(aten.split.Tensor, x, 1)
    views = [made.call(operator.getitem, parts, index) for index in range(2)]
    both = made.call(aten.aminmax.default, x)
    fresh = [made.call(operator.getitem, both, index) for index in range(2)]
    assert [base(each) for each in views] == [x, x]
    assert [base(each) for each in fresh] == fresh


def test_a_write_returns_the_memory_it_wrote(made):
    x = made.input()
    y = made.call(aten.relu.default, x)
    first = made.call(aten.add_.Tensor, y, 1.0)
    view = made.call(aten.view.default, first, [6])
    second = made.call(aten.mul_.Tensor, view, 2.0)
    assert base(second) is y
    assert (written(first), written(second), written(view)) == ([y], [view], [])


def test_out_arguments_are_written_and_shared(made):
    x, out = made.input(), made.input("out", torch.zeros(2, 3))
    y = made.call(aten.relu.out, x, out=out)
    assert written(y) == [out]
    assert base(y) is out


def test_constants_may_share_memory(made):
    first, second = (made.graph.get_attr(name) for name in ("a", "b"))
    second.meta[SHARES] = first
    assert base(first) is base(second)
    assert not Aliases().is_whole(second)


def test_what_is_a_part_and_what_is_the_whole(made):
    y = made.call(aten.relu.default, made.input())
    changed = made.call(aten.add_.Tensor, y, 1.0)
    part = made.call(aten.select.int, changed, 0, 0)
    changed_part = made.call(aten.add_.Tensor, part, 1.0)
    aliases = Aliases()
    assert [aliases.is_whole(each) for each in (y, changed, part, changed_part)] == [
        *(True, True),
        *(False, False),
    ]


def test_answers_stay_when_a_write_is_replaced(made):
    y = made.call(aten.relu.default, made.input())
    changed = made.call(aten.add_.Tensor, y, 1.0)
    view = made.call(aten.view.default, changed, [6])
    aliases = Aliases()
    assert aliases.base(changed) is y
    changed.target = aten.add.Tensor
    assert (aliases.base(view), base(view)) == (y, changed)
    aliases.declare(view, view)
    assert aliases.base(view) is view
    assert aliases.is_whole(view)


def test_a_chain_of_thousands_of_views_is_followed(made):
    x = node = made.input()
    for _ in range(5000):
        node = made.call(aten.view.default, node, [2, 3])
    assert Aliases().base(node) is base(node) is x


def test_a_value_lives_to_its_last_reader(made):
    x = made.input()
    a = made.call(aten.sin.default, x)
    b = made.call(aten.cos.default, a)
    c = made.call(aten.add.Tensor, b, b)
    alive = made.returned(c)
    assert [alive.position(each) for each in (x, a, b, c)] == [0, 1, 2, 3]
    assert [alive.last_use(each) for each in (x, a, b, c)] == [1, 2, 3, 4]
    assert alive.bytes_alive() == [0, 24, 48, 48, 24]


def test_a_reader_of_a_view_keeps_the_whole_alive(made):
    a = made.call(aten.sin.default, made.input())
    view = made.call(aten.select.int, a, 0, 0)
    b = made.call(aten.cos.default, made.input("y"))
    c = made.call(aten.add.Tensor, b, view)
    alive = made.returned(c)
    assert alive.last_use(a) == alive.last_use(view) == alive.position(c)
    assert alive.memory(view) is a
    assert [each.node for each in alive.ranges] == [a, b, c]


def test_a_write_is_a_use_and_makes_no_memory(made):
    a = made.call(aten.sin.default, made.input())
    b = made.call(aten.cos.default, a)
    changed = made.call(aten.add_.Tensor, a, b)
    alive = made.returned(changed)
    assert [(each.node, each.last) for each in alive.ranges] == [(a, 4), (b, 3)]


def test_writing_a_slot_takes_no_memory(made):
    x = made.input()
    y = made.call(aten.sin.default, x)
    made.call(aten.copy_.default, x, y)
    alive = made.returned()
    assert alive.ranges == (LiveRange(node=y, result=0, first=1, last=2, size=24),)
    assert alive.bytes_alive() == [0, 24, 24, 0]


def test_a_value_that_nobody_reads_lives_while_it_is_made(made):
    dead = made.call(aten.sin.default, made.input())
    y = made.call(aten.cos.default, made.input("y"))
    alive = made.returned(y)
    assert alive.last_use(dead) == alive.position(dead) == 1
    assert alive.bytes_alive() == [0, 24, 0, 24, 24]


def test_a_value_returned_twice_is_one(made):
    y = made.call(aten.sin.default, made.input())
    view = made.call(aten.t.default, y)
    alive = made.returned(y, view, y)
    assert len(alive.ranges) == 1
    assert alive.bytes_alive() == [0, 24, 24, 24]


def test_a_returned_input_is_memory_of_the_caller(made):
    x = made.input()
    alive = made.returned(x)
    assert (alive.last_use(x), alive.bytes_alive()) == (1, [0, 0])


def test_results_of_one_operation_die_one_by_one(made):
    both = made.call(aten.aminmax.default, made.input("x", torch.ones(2, 3)))
    least, most = (made.call(operator.getitem, both, index) for index in range(2))
    a = made.call(aten.neg.default, least)
    b = made.call(aten.add.Tensor, a, most)
    alive = made.returned(b)
    assert [(each.result, each.first, each.last) for each in alive.ranges[:2]] == [
        (0, 1, alive.position(a)),
        (1, 1, alive.position(b)),
    ]


def test_a_result_that_is_picked_twice_is_one(made):
    both = made.call(aten.aminmax.default, made.input())
    once, again = (made.call(operator.getitem, both, 0) for _ in range(2))
    alive = made.returned(again)
    assert alive.memory(once) is alive.memory(again)
    assert alive.last_use(once) == alive.last_use(again) == 4


def test_whoever_knows_better_may_say_where_values_live(made):
    x = made.input()
    a = made.call(aten.sin.default, x)
    b = made.call(aten.cos.default, a)
    made.graph.output([b])
    alive = Liveness(made.graph, lambda node: a if node is b else node)
    assert alive.last_use(a) == 3
    assert [each.node for each in alive.ranges] == [a]


class Looping(nn.Module):
    def forward(self, x):
        a = torch.sin(x)
        b = torch.cos(x)
        y = torch.cond(x.sum() > 0, lambda a, b: (a * b).exp(), lambda a, b: a - b, (a, b))
        return y.sum()


def test_a_branch_reads_what_it_is_given_and_needs_room_for_its_body():
    (program,) = captured(Looping(), [torch.ones(2, 3)]).programs
    graph = program.graph.graph
    alive = Liveness(graph)
    (branch,) = (node for node in graph.nodes if str(node.target) == "cond")
    given = [
        node
        for node in branch.all_input_nodes
        if node.target in (aten.sin.default, aten.cos.default)
    ]
    assert len(given) == 2
    assert all(alive.last_use(each) == alive.position(branch) for each in given)
    at_branch = alive.bytes_alive()[alive.position(branch)]
    # The product and what exp makes of it, beside all that lives around the branch.
    assert max(memory.of_graph(program).alive()) == at_branch + 2 * 24

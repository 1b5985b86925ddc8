"""Programs with graphs inside: their checks, their text, and moving them."""

import pytest
import torch
from torch import nn

from abele import passes
from abele.capture.replacements.offsets import difference
from abele.errors import ProgramError
from abele.passes.of_lowerings.gpu import on_device
from abele.program import all_nodes, subgraphs
from abele.trace import control_flow
from abele.trace.decompositions import constant_value
from helpers.runs import captured

aten = torch.ops.aten
X = torch.arange(6.0).reshape(2, 3)


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def program(function):
    (result,) = captured(Calls(function), (X,)).programs
    return passes.run(result)


def looped(body):
    return program(lambda x: control_flow.loop(3, lambda a: [body(a)], [x], lambda results: None))


def test_random_operations_inside_count():
    assert looped(lambda a: a + torch.rand(3)).uses_random
    assert not looped(lambda a: a + torch.ones(3)).uses_random


def test_the_text_is_of_the_whole_program():
    texts = [looped(lambda a, k=k: a * k).text(provenance=False) for k in (2, 2, 3)]
    assert texts[0] == texts[1] != texts[2]
    assert "def while_loop_body_graph_0(a0, a1):" in texts[0]
    assert "aten.mul.Tensor(a1, 2)" in texts[0]


def test_views_stay_views_inside():
    result = looped(lambda a: (a.t().reshape(2, 3)[:, :1] + a).view(3, 2).view(2, 3))
    names = {str(node.target) for node in all_nodes(result.graph)}
    assert not {name for name in names if "_copy" in name}
    assert "aten.slice.Tensor" in names


def test_writes_inside_are_refused():
    result = looped(lambda a: a * 2)
    for name, inner in subgraphs(result.graph):
        if "body" in name:
            node = next(n for n in inner.graph.nodes if n.target is aten.mul.Tensor)
            node.target = aten.mul_.Tensor
    with pytest.raises(ProgramError, match=r"inside a loop or a branch.*aten\.mul_"):
        result.verify()


def test_equal_branches_with_random_numbers_stay_two():
    def draw(x):
        def side(a):
            return [a + torch.rand(3)]

        return control_flow.choose(x.sum() > 0, (side, side), ([x], [x]), lambda a, b: None)

    result = program(lambda x: [*draw(x), *draw(x)])
    loops = [n for n in result.graph.graph.nodes if n.target is torch.ops.higher_order.cond]
    assert len(loops) == 2


def test_inner_graphs_move_as_copies():
    constant = torch.tensor([1.0, 2.0, 3.0])
    result = looped(lambda a: a + torch.ones(3) * constant)
    moved = on_device(result, torch.device("meta"))
    kinds = {}
    for name, each in (("kept", result), ("moved", moved)):
        made = [n for n in all_nodes(each.graph) if n.target is aten.ones.default]
        kinds[name] = {n.kwargs["device"].type for n in made}
        assert {n.meta["val"].device.type for n in made} == kinds[name]
    assert kinds == {"kept": {"cpu"}, "moved": {"meta"}}


def test_the_distance_of_traced_numbers():
    results = []

    def forward(x):
        i = x.sum().long()
        stops = [i, i + 2, i - 3 + 1, (i + 1).clone(), x.sum().long() + 4, i * 2, 5]
        results.extend(difference(i, stop) for stop in stops)
        results.append(difference(torch.rand(()), torch.rand(())))
        return [x]

    captured(Calls(forward), (X,))
    assert results == [0, 2, -2, 1, 4, None, None, None]


def test_values_of_constants_are_known():
    results = []
    kept = torch.tensor([1.0, 2.0])

    def forward(x):
        made = torch.ones(2) * 3
        changed = torch.ones(2)
        changed.add_(1)
        filled = torch.ones(2)
        filled[0] = x[0, 0]
        for each in (made, kept, x, made + x[0, 0], torch.rand(2), changed, filled):
            value = constant_value(each)
            results.append(None if value is None else value.tolist())
        return [x]

    captured(Calls(forward), (X,))
    assert results == [[3.0, 3.0], [1.0, 2.0], None, None, None, [2.0, 2.0], None]

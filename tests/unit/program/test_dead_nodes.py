"""What nothing reads leaves a graph, and nothing else does."""

import pytest
import torch
from torch import nn

from abele.program.aliasing import erase_dead_nodes, stays_in_program

aten = torch.ops.aten


def _targets(graph):
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def _module(build, root=None):
    graph = torch.fx.Graph()
    graph.output(build(graph, graph.placeholder("x")))
    return torch.fx.GraphModule(root or nn.Module(), graph)


def test_a_chain_that_nothing_reads_goes_as_a_whole():
    def build(graph, x):
        unread = graph.call_function(aten.sin.default, (x,))
        graph.call_function(aten.cos.default, (unread,))
        return graph.call_function(aten.tanh.default, (x,))

    module = _module(build)
    erase_dead_nodes(module)
    assert _targets(module) == [aten.tanh.default]


@pytest.mark.parametrize(
    ("stays", "remaining"),
    [
        (None, [aten.copy_.default, aten.bernoulli.default]),
        (stays_in_program, [aten.copy_.default]),
    ],
    ids=["writes and random numbers", "writes only"],
)
def test_what_acts_stays(stays, remaining):
    def build(graph, x):
        graph.call_function(aten.copy_.default, (x, x))
        graph.call_function(aten.bernoulli.default, (x,))
        return x

    module = _module(build)
    erase_dead_nodes(module, *([stays] if stays else []))
    assert _targets(module) == remaining


def test_bodies_of_branches_are_cleared_too():
    def body(graph, x):
        graph.call_function(aten.sin.default, (x,))
        return graph.call_function(aten.cos.default, (x,))

    root = nn.Module()
    root.body = _module(body)

    def build(graph, x):
        return graph.call_function(
            torch.ops.higher_order.invoke_subgraph, (graph.get_attr("body"), x)
        )

    module = _module(build, root)
    erase_dead_nodes(module)
    assert _targets(module.body) == [aten.cos.default]

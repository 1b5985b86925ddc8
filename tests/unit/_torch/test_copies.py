"""Copies of nodes and graphs are those that torch makes."""

import copy

import torch
from torch import nn

from abele._torch.copies import copied_graph, copied_node

aten = torch.ops.aten


def _graph():
    graph = torch.fx.Graph()
    x, other = graph.placeholder("x"), graph.placeholder("relu_1")
    first = graph.call_function(aten.relu.default, (x,))
    first.meta["val"] = torch.ones(2)
    second = graph.call_function(aten.relu.default, (first,))
    both = graph.call_function(aten.cat.default, ([first, second],), {"dim": 0})
    graph.output([both, other])
    return graph


def _facts(graph):
    return [
        (node.op, node.name, node.target, str(node.args), str(node.kwargs), list(node.meta))
        for node in graph.nodes
    ]


def test_a_copied_graph_is_the_one_that_deepcopy_makes():
    graph = _graph()
    copied = copied_graph(graph)
    assert _facts(copied) == _facts(copy.deepcopy(graph))
    assert {node.graph for node in copied.nodes} == {copied}
    copied.lint()
    x = torch.tensor([-1.0, 2.0])
    assert torch.fx.GraphModule(nn.Module(), copied)(x, x)[0].tolist() == [0, 2, 0, 2]


def test_metadata_of_a_copy_is_its_own():
    graph = _graph()
    copied = copied_graph(graph)
    next(iter(copied.nodes)).meta["val"] = 1
    assert "val" not in next(iter(graph.nodes)).meta


def test_a_copied_node_is_the_one_that_torch_makes_where_nodes_are_inserted():
    ours, theirs = _graph(), _graph()
    for graph, copied in ((ours, copied_node), (theirs, torch.fx.Graph.node_copy)):
        x, _, first, second, *_ = graph.nodes
        instead = {first: x}
        with graph.inserting_before(first):
            copied(graph, second, lambda node, instead=instead: instead[node])
        assert len(graph.find_nodes(op="call_function", target=aten.relu.default)) == 3
        graph.lint()
    assert _facts(ours) == _facts(theirs)
    assert len(ours.nodes) == len(theirs.nodes)


def test_a_copy_may_get_other_metadata():
    graph = _graph()
    meta = {"val": 1}
    copied = copied_node(graph, list(graph.nodes)[2], lambda node: node, meta)
    copied.meta["line"] = 2
    assert (copied.meta, meta) == ({"val": 1, "line": 2}, {"val": 1})

"""Copies of nodes and graphs are those that torch makes."""

import copy

import torch
from torch import nn

from abele._torch.copies import called_targets, copied_graph, copied_node, new_call

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


def test_nodes_added_to_a_copy_have_the_names_that_they_have_in_deepcopys():
    ours, theirs = copied_graph(_graph()), copy.deepcopy(_graph())
    for graph in (ours, theirs):
        for _ in range(3):
            with graph.inserting_before(next(reversed(graph.nodes))):
                graph.call_function(aten.relu.default, (next(iter(graph.nodes)),))
    assert _facts(ours) == _facts(theirs)
    assert len(ours.find_nodes(op="call_function", target=aten.relu.default)) == 5


def test_a_new_call_is_the_one_that_torch_makes():
    ours, theirs, meta = _graph(), _graph(), {"val": 1}
    for graph in (ours, theirs):
        x, _, first, *_ = graph.nodes
        with graph.inserting_before(first):
            if graph is ours:
                made = new_call(graph, aten.add.Tensor, (x, [x, 1]), meta)
            else:
                graph.call_function(aten.add.Tensor, (x, [x, 1])).meta.update(meta)
        graph.lint()
    made.meta["line"] = 2
    assert meta == {"val": 1}
    del made.meta["line"]
    assert _facts(ours) == _facts(theirs)
    assert len(ours.nodes) == len(theirs.nodes)


def test_targets_are_named_once_and_only_while_they_are_called():
    graph = _graph()
    assert called_targets(graph) == [aten.relu.default, aten.cat.default]
    (last,) = graph.find_nodes(op="call_function", target=aten.cat.default)
    last.replace_all_uses_with(next(iter(graph.nodes)))
    graph.erase_node(last)
    assert called_targets(graph) == [aten.relu.default]

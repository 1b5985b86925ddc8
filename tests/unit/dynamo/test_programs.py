"""Graphs of ahead-of-time autograd are split into a program and views."""

import pytest
import torch

from abele import Role, _torch
from abele.dynamo.programs import split
from abele.errors import CaptureError

aten = torch.ops.aten


def graph_of(function, *inputs):
    return _torch.make_fx(function, tracing_mode="fake")(*inputs)


def run(parts, inputs):
    """What a split graph returns, its program interpreted by torch."""
    given = [inputs[index] for index in parts.taken]
    results = parts.program.graph(*given)
    if parts.views is None:
        return results
    return parts.views([(inputs if mine else results)[index] for mine, index in parts.sources])


def test_saved_weights_and_views_are_no_results_of_the_program():
    def function(w, x):
        y = aten.mm.default(x, w)
        return [y, w, aten.t.default(y), x, None]

    inputs = torch.randn(3, 3), torch.randn(2, 3)
    parts = split(graph_of(function, *inputs), "forward", {"w_1"})
    assert [slot.shape for slot in parts.program.outputs] == [(2, 3)]
    assert [slot.role for slot in parts.program.inputs] == [Role.PARAMETER, Role.INPUT]
    y, w, turned, x, nothing = run(parts, inputs)
    assert (w is inputs[0], x is inputs[1], nothing) == (True, True, None)
    assert torch.equal(y, inputs[1] @ inputs[0])
    assert turned.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def test_a_transposed_result_is_a_result():
    inputs = torch.randn(3, 4), torch.randn(2, 3)
    parts = split(
        graph_of(lambda w, x: [aten.t.default(aten.mm.default(x, w))], *inputs), "forward"
    )
    assert parts.views is None
    assert [slot.shape for slot in parts.program.outputs] == [(4, 2)]


def test_a_part_of_a_result_keeps_the_whole():
    inputs = (torch.randn(4, 4),)
    parts = split(
        graph_of(lambda x: [aten.select.int(aten.sin.default(x), 0, 1)], *inputs), "backward"
    )
    assert [slot.shape for slot in parts.program.outputs] == [(4, 4)]
    (row,) = run(parts, inputs)
    assert torch.equal(row, inputs[0].sin()[1])


def test_a_written_input_is_a_buffer():
    def function(n, x):
        new = aten.add.Tensor(n, x)
        aten.copy_.default(n, new)
        return [aten.mul.Tensor(new, x)]

    inputs = torch.zeros(3), torch.ones(3)
    parts = split(graph_of(function, *inputs), "forward", {"n_1"})
    assert [(s.role, s.mutated) for s in parts.program.inputs] == [
        (Role.BUFFER, True),
        (Role.INPUT, False),
    ]
    run(parts, inputs)
    assert torch.equal(inputs[0], torch.ones(3))


def test_numbers_that_nothing_reads_are_left_out():
    graph = graph_of(lambda x, y: [aten.sin.default(y)], torch.ones(2), torch.ones(2))
    first = next(iter(graph.graph.nodes))
    first.meta["val"] = 7
    assert split(graph, "forward").taken == (1,)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: [torch.view_as_complex(x)], "a tensor is complex"),
        (lambda x: [x.to_sparse()], "a tensor is of layout torch.sparse_coo"),
        (lambda x: [aten.relu_.default(aten.sin.default(x))], "aten.relu_.default writes in place"),
    ],
)
def test_refusals_say_why(function, reason):
    graph = graph_of(function, torch.ones(2, 2))
    with pytest.raises(CaptureError, match=reason):
        split(graph, "forward")


def test_functions_that_are_no_operators_are_refused():
    graph = graph_of(lambda x: [aten.sin.default(x)], torch.ones(2))
    next(n for n in graph.graph.nodes if n.op == "call_function").target = torch.sin
    with pytest.raises(CaptureError, match="programs cannot have 'sin'"):
        split(graph, "forward")

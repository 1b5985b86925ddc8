"""Random numbers of a pipeline: all drawn in the first stage, so that their order stays.

    stage 1:  mask = bernoulli(empty_like(x), 0.9)
->  stage 0:  mask = bernoulli(empty(shape of x), 0.9)

A program draws from one stream. Stages that work on several micro-batches at once would draw from
it in another order, so draws that need no value, only a shape, move to where micro-batches start.
"""

from __future__ import annotations

import torch

from abele.passes._edit import editable, finished
from abele.pipeline.assignment import STAGE
from abele.program import Program, marks_of
from abele.program.core import node_phase
from abele.program.cut import draws

aten = torch.ops.aten

# Of the first argument of these, only the layout counts.
_LIKE = {
    aten.bernoulli.p,
    aten.rand_like.default,
    aten.randn_like.default,
    aten.randint_like.default,
    aten.randint_like.low_dtype,
    aten.uniform.default,
    aten.normal_functional.default,
    aten.exponential.default,
}


def drawn_first(program: Program) -> Program:
    """The program with every draw of forward that needs no value marked for stage 0."""
    graph = editable(program)
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or not draws(node) or node_phase(node) != "forward":
            continue
        if node.target in _LIKE:
            _read_no_value(node)
        if node.target in _LIKE or not node.all_input_nodes:
            node.meta["custom"] = {**marks_of(node), STAGE: 0}
    return finished(program, graph)


def _read_no_value(node: torch.fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    value = source.meta["val"]
    with node.graph.inserting_before(node):
        empty = node.graph.call_function(
            aten.empty_strided.default,
            (list(value.shape), list(value.stride())),
            {"dtype": value.dtype, "device": value.device},
        )
    empty.meta = {"val": value}
    node.replace_input_with(source, empty)

"""Joining of counters that count by the same number, as those of batch norms do.

    a1 = add(a, 1); b1 = add(b, 1); ...   ->   a1, b1, ... = _foreach_add([a, b, ...], 1)

A network may have a hundred of them, and calling an operator from Python takes longer than the sum.
A layer that is used several times counts once for all of them.
"""

from __future__ import annotations

import operator
from typing import NamedTuple, cast

import torch

from abele.passes._edit import editable, finished
from abele.program import Program
from abele.program.dead_nodes import erase_dead_nodes, stays_in_program

aten = torch.ops.aten

_Node = torch.fx.Node


def joined_counters(program: Program) -> Program:
    """Replace sums of numbers and state of one element by one operation for all of them."""
    graph = editable(program)
    by_number: dict[int, list[_Counter]] = {}
    for node in graph.graph.nodes:
        counter = _counter(node)
        if counter is not None and not any(_summand(user) is node for user in node.users):
            by_number.setdefault(counter.number, []).append(counter)
    for number, counters in by_number.items():
        if len(counters) > 1:
            _join(counters, number)
    erase_dead_nodes(graph, stays_in_program)
    return finished(program, graph)


class _Counter(NamedTuple):
    """A node, and the state and number of which it is the sum."""

    node: _Node
    state: _Node
    number: int


def _counter(node: _Node) -> _Counter | None:
    number, state = 0, node
    while (summand := _summand(state)) is not None:
        number += cast("int", state.args[1])
        state = summand
    return (
        _Counter(node, state, number) if state is not node and state.op == "placeholder" else None
    )


def _summand(node: _Node) -> _Node | None:
    """What a number is added to, if both are whole."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return None
    summand, number = node.args
    if not isinstance(summand, _Node) or type(number) is not int:
        return None
    value = summand.meta["val"]
    return summand if value.dim() == 0 and value.dtype is torch.int64 else None


def _join(counters: list[_Counter], number: int) -> None:
    graph, first = counters[0].node.graph, counters[0].node
    with graph.inserting_before(first):
        arguments = [each.state for each in counters], number
        joined = graph.call_function(aten._foreach_add.Scalar, arguments)
        joined.meta = {**first.meta, "val": [each.node.meta["val"] for each in counters]}
        for index, each in enumerate(counters):
            new = graph.call_function(operator.getitem, (joined, index))
            new.meta = dict(each.node.meta)
            each.node.replace_all_uses_with(new)

"""What passes that join the updates of parameters share: matching nodes, and one call for many."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch

from abele.passes._edit import editable, finished
from abele.program import Program
from abele.program.dead_nodes import erase_dead_nodes, stays_in_program

aten = torch.ops.aten

_Node = torch.fx.Node
_FLOAT = torch.float32

# A hyper-parameter: a constant, or the node of one that may change.
Number = float | torch.fx.Node


class Mismatch(Exception):
    """A node does not match an update at this place."""


@dataclasses.dataclass(frozen=True)
class Update:
    """One parameter's update.

    Attributes:
        numbers: hyper-parameters, in the order of the operator's arguments.
        inputs: one of each list of tensors that the operator takes, the parameter first.
        results: the nodes with one value of each list that it returns, likewise.
    """

    numbers: tuple[Number, ...]
    inputs: tuple[_Node, ...]
    results: tuple[_Node, ...]


def joined(program: Program, target: Any, match: Callable[[_Node, _Node], Update]) -> Program:
    """Replace updates by one call for all that share their numbers.

    Args:
        program: with an update of each parameter by itself.
        target: the operator that updates many.
        match: takes a parameter and what is written to it; raises ``Mismatch`` where that is
            another computation.
    """
    graph = editable(program)
    writes = [node for node in graph.graph.nodes if node.target is aten.copy_.default]
    by_numbers: dict[tuple[Number, ...], list[Update]] = {}
    for write in writes:
        try:
            update = match(*write.args)
        except Mismatch:
            continue
        by_numbers.setdefault(update.numbers, []).append(update)
    for updates in by_numbers.values():
        _join(target, updates, writes[0])
    erase_dead_nodes(graph, stays_in_program)
    return finished(program, graph)


def take(node: Any, target: Any, *constants: Any) -> tuple[Any, ...]:
    """Return the arguments of a node that must call ``target``; ``...`` matches any argument."""
    if not isinstance(node, _Node) or node.target is not target or node.kwargs:
        raise Mismatch
    arguments = node.args
    if constants:
        expected = zip(arguments, constants, strict=False)
        same = all(
            pattern is ... or value is pattern or value == pattern for value, pattern in expected
        )
        if len(arguments) != len(constants) or not same:
            raise Mismatch
    return arguments


def converted(value: Any) -> Any:
    """A number before it got the type of the tensors, if it did."""
    if not isinstance(value, _Node) or value.target is not aten._to_copy.default:
        return value
    if dict(value.kwargs) != {"dtype": _FLOAT}:
        raise Mismatch
    return value.args[0]


def check_tensors(tensors: tuple[Any, ...]) -> None:
    """Tensors must be float32 and of one shape."""
    if not all(isinstance(node, _Node) for node in tensors):
        raise Mismatch
    values = [node.meta["val"] for node in tensors]
    shapes = {tuple(value.shape) for value in values}
    if len(shapes) > 1 or any(value.dtype is not _FLOAT for value in values):
        raise Mismatch


def check_numbers(numbers: tuple[Any, ...]) -> None:
    """Numbers must be constants, or nodes of 0-d float64 tensors."""
    values = [number.meta["val"] for number in numbers if isinstance(number, _Node)]
    if any(value.dtype is not torch.float64 or value.dim() for value in values):
        raise Mismatch


def _join(target: Any, updates: list[Update], before: _Node) -> None:
    graph, count = before.graph, len(updates)
    columns = [list(column) for column in zip(*(each.inputs for each in updates), strict=True)]
    kinds = range(len(updates[0].results))
    with graph.inserting_before(before):
        numbers = [_slot(each, updates[0].results[0]) for each in updates[0].numbers]
        call = graph.call_function(target, (*columns, *numbers))
        values = [each.results[kind].meta["val"] for kind in kinds for each in updates]
        call.meta = {**updates[0].results[0].meta, "val": values}
        for kind in kinds:
            for index, each in enumerate(updates):
                new = graph.call_function(operator.getitem, (call, kind * count + index))
                new.meta = dict(each.results[kind].meta)
                # Others that read it keep the old computation.
                each.results[kind].replace_all_uses_with(
                    new, lambda user: user.target is aten.copy_.default
                )


def _slot(number: Number, origin: _Node) -> _Node:
    """A number as a node, made where ``origin`` was."""
    if isinstance(number, _Node):
        return number
    kwargs: Any = {"dtype": torch.float64}
    constant = origin.graph.call_function(aten.full.default, ([], number), kwargs)
    value = origin.meta["val"].new_empty((), dtype=torch.float64)
    constant.meta = {**origin.meta, "val": value}
    return constant

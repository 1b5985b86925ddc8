"""Convolutions in other types, and before upsampling."""

from __future__ import annotations

import functools
from typing import Any, cast

import torch

from abele import _torch
from abele.containers import is_sequence
from abele.passes._edit import editable, finished
from abele.program import Program, is_getitem

aten = torch.ops.aten

_Node = torch.fx.Node
_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
_TENSORS = 3  # of the first arguments of both


def half_convolutions(program: Program) -> Program:
    """Compute convolutions of half numbers in float32, on processors where that is faster."""
    if not is_faster() or not any(map(_is_one, program.graph.graph.nodes)):
        return program
    graph = editable(program)
    for node in filter(_is_one, list(graph.graph.nodes)):
        _widen(node)
    return finished(program, graph)


@functools.cache
def is_faster() -> bool:
    """Return whether oneDNN would compute half convolutions on this processor."""
    return _torch.computes_half_convolutions()


def _is_one(node: _Node) -> bool:
    """Return whether a node is a convolution in half precision, or its backward."""
    if node.target not in _CONVOLUTIONS:
        return False
    return cast("_Node", node.args[0]).meta["val"].dtype is torch.float16


def _widen(node: _Node) -> None:
    """Cast what a node reads and makes."""
    arguments: tuple[Any, ...] = node.args
    with node.graph.inserting_before(node):
        wide = [each and _cast(each, torch.float32, like=node) for each in arguments[:_TENSORS]]
    node.args = (*wide, *arguments[_TENSORS:])
    made = [each for each in list(node.users) if is_getitem(each)]
    for each in reversed(made):
        node.append(each)  # all results are kept until the last of them is taken
    node.meta["val"] = _in_type(node.meta["val"], torch.float32)
    last = made[-1] if made else node
    for each in reversed(made or [node]):
        each.meta["val"] = _in_type(each.meta["val"], torch.float32)
        users = dict(each.users)
        with node.graph.inserting_after(last):
            narrow = _cast(each, torch.float16, like=each)
        for user in users:
            user.replace_input_with(each, narrow)


def _cast(node: _Node, dtype: torch.dtype, *, like: _Node) -> _Node:
    """Add a node that casts ``node`` to a type; ``like`` provides its source line and phase."""
    cast_node = node.graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
    cast_node.meta = {**like.meta, "val": _in_type(node.meta["val"], dtype)}
    return cast_node


def _in_type(value: Any, dtype: torch.dtype) -> Any:
    """Return a tensor without data, or several of them, in another type."""
    if is_sequence(value):
        return tuple(_in_type(each, dtype) for each in value)
    return value if value is None else value.to(dtype)

"""Operators of a program that index, their indices, and the bounds of these."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from abele._torch import schema_of
from abele.program import called_operator, marks_of
from abele.program.core import user_line

# Operators that index along an argument, and the names of their tensor and their index.
_ALONG = dict.fromkeys(
    (
        *("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add"),
        *("index_copy", "index_reduce", "index_fill"),
    ),
    ("self", "index"),
)
_ROWS = dict.fromkeys(
    ("embedding", "_embedding_bag", "_embedding_bag_forward_only"), ("weight", "indices")
)
_LISTS = ("index", "index_put", "_unsafe_index_put")
_LOSSES = ("nll_loss_forward", "nll_loss2d_forward")
_WRAPPING = ("index_fill", "take", "put", *_LISTS)  # -1 is the last element

#: The smallest index that fits, the largest, and one more that is ignored.
Bounds = tuple[int, int, int | None]


def name_of(node: torch.fx.Node) -> str:
    """Return the operator's name in torch without its overload; empty for other operators."""
    called = called_operator(node)
    ours = called is not None and called.namespace == "aten"
    return str(called).split(".")[1] if ours else ""


def indices(node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, Bounds]]:
    """Yield the indices of an operator, each with its bounds and a value that is ignored."""
    for index, size, ignored in _sizes(name_of(node), node):
        value = index.meta.get("val")
        if value is None or value.dtype in (torch.bool, torch.uint8) or not value.numel():
            continue
        yield index, (-size if name_of(node) in _WRAPPING else 0, size - 1, ignored)


def _sizes(name: str, node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, int, int | None]]:
    if name in _ALONG:
        tensor, index = (argument_of(node, each) for each in _ALONG[name])
        yield index, _size(tensor, argument_of(node, "dim")), None
    elif name in _ROWS:
        tensor, index = (argument_of(node, each) for each in _ROWS[name])
        yield index, _size(tensor, 0), None
    elif name in ("take", "put"):
        yield argument_of(node, "index"), argument_of(node, "self").meta["val"].numel(), None
    elif name in _LOSSES:
        tensor = argument_of(node, "self")
        size = _size(tensor, min(1, tensor.meta["val"].dim() - 1))
        yield argument_of(node, "target"), size, argument_of(node, "ignore_index")
    elif name in _LISTS:
        for dim, index in enumerate(argument_of(node, "indices")):
            if index is not None:
                yield index, _size(argument_of(node, "self"), dim), None


def _size(tensor: torch.fx.Node, dim: int) -> int:
    shape = tensor.meta["val"].shape
    return shape[dim] if shape else 1


def argument_of(node: torch.fx.Node, name: str) -> Any:
    """Return the argument of a name that an operator was given, or its default.

    Raises:
        KeyError: it has no such argument.
    """
    called = called_operator(node)
    assert called is not None, node
    for position, argument in enumerate(schema_of(called).arguments):
        if argument.name == name:
            given = node.args[position] if position < len(node.args) else argument.default_value
            return node.kwargs.get(name, given)
    raise KeyError(f"{called} has no argument {name!r}")


def message(node: torch.fx.Node, line: str, low: int, high: int, ignored: int | None) -> str:
    """Say which indices an operator takes; ``line`` is that of the loop or branch it stands in."""
    name = name_of(node).removesuffix("_only").removesuffix("_forward").strip("_")
    besides = "" if ignored is None else f" and {ignored}, which it ignores"
    where = line_of(node) or line
    return f"{where or 'in this program'}: {name} takes the indices {low} to {high}{besides}"


def line_of(node: torch.fx.Node) -> str:
    """Return the user's line that an operator comes from, or nothing."""
    frame = user_line(node.meta.get("stack_trace"))
    return f"{frame[0]}:{frame[1]} in {frame[2]}" if frame else marks_of(node).get("of_line", "")

"""Constant differences of traced integers, derived from their operations."""

from __future__ import annotations

from typing import Any

import torch

from abele import _torch
from abele.containers import is_sequence
from abele.program import writes

aten = torch.ops.aten

_COPIES = (aten.clone.default, aten.alias.default, aten.detach.default)


def difference(start: object, stop: object) -> int | None:
    """Return ``stop - start`` if it is the same at every run, else None."""
    if not isinstance(start, torch.Tensor) or not isinstance(stop, torch.Tensor):
        return None
    begin, end = _torch.traced_node(start), _torch.traced_node(stop)
    if begin is None or end is None:
        return None
    (first, low), (second, high) = _split(begin), _split(end)
    return high - low if _same(first, second) else None


def _split(node: torch.fx.Node) -> tuple[torch.fx.Node, int]:
    """Split a traced integer into another node and a constant offset."""
    offset = 0
    while True:
        if node.target in _COPIES:
            node = _argument(node)
        elif _adds_int(node, (aten.add.Tensor, aten.add.Scalar)):
            offset, node = offset + _number(node), _argument(node)
        elif _adds_int(node, (aten.sub.Tensor, aten.sub.Scalar)):
            offset, node = offset - _number(node), _argument(node)
        else:
            return node, offset


def _argument(node: torch.fx.Node) -> torch.fx.Node:
    argument = node.args[0]
    assert isinstance(argument, torch.fx.Node)
    return argument


def _number(node: torch.fx.Node) -> int:
    value = node.args[1]
    assert isinstance(value, int)
    return value


def _adds_int(node: torch.fx.Node, targets: tuple[_torch.OpOverload, ...]) -> bool:
    if node.target not in targets or node.kwargs or len(node.args) != 2:
        return False
    return isinstance(node.args[0], torch.fx.Node) and isinstance(node.args[1], int)


def _same(one: Any, other: Any) -> bool:
    """Return whether two traced values are computed alike, from the same inputs."""
    if not isinstance(one, torch.fx.Node) or not isinstance(other, torch.fx.Node):
        if is_sequence(one) and is_sequence(other):
            return len(one) == len(other) and all(map(_same, one, other))
        return type(one) is type(other) and one == other
    if one is other:
        return True
    return (
        one.op == other.op == "call_function"
        and one.target == other.target
        and _is_pure(one)
        and one.kwargs == other.kwargs
        and _same(one.args, other.args)
    )


def _is_pure(node: torch.fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return not writes(node) and torch.Tag.nondeterministic_seeded not in tags

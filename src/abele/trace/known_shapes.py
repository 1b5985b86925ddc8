"""Operators whose result shapes depend on values, computed during capture if those are constant.

If all values that such an operator reads are computed from constants, its result is a constant too.
Otherwise torch handles the operator and reports that it cannot be traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from abele import _torch
from abele.containers import is_tuple
from abele.trace.constants import constant_value

aten = torch.ops.aten


def _computed_now(operator: _torch.OpOverload) -> Callable[..., Any]:
    """Return ``operator`` computed during capture if all of its tensors are constants."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        values = [_with_values(each) for each in (*args, *kwargs.values())]
        if any(value is NotImplemented for value in values):
            return NotImplemented
        named = dict(zip(kwargs, values[len(args) :], strict=True))
        with _torch.outside_the_trace():
            results = operator(*values[: len(args)], **named)
        if is_tuple(results):
            return tuple(map(_traced, results))
        return _traced(results)

    return compute


def _with_values(value: Any) -> Any:
    """Return an argument with its values; NotImplemented if they are not known yet."""
    if not isinstance(value, torch.Tensor):
        return value
    constant = constant_value(value)
    return NotImplemented if constant is None else constant


def _traced(value: Any) -> Any:
    """Return a result as a constant of the program."""
    return aten.lift_fresh_copy.default(value) if isinstance(value, torch.Tensor) else value


def _index(x: torch.Tensor, indices: list[torch.Tensor | None]) -> Any:
    """Index by the positions at which constant masks are true."""
    places: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            places.append(index)
        elif (mask := _with_values(index)) is NotImplemented:
            return NotImplemented
        else:
            with _torch.outside_the_trace():
                columns = mask.nonzero().unbind(1)
            places += [_traced(column.contiguous()) for column in columns]
    if len(places) == len(indices) and all(a is b for a, b in zip(places, indices, strict=True)):
        return NotImplemented
    return aten.index.Tensor(x, places)


def _masked_select(x: torch.Tensor, mask: torch.Tensor) -> Any:
    known_mask = _with_values(mask)
    if known_mask is NotImplemented:
        return NotImplemented
    untyped: Any = torch
    shape: torch.Size = untyped.broadcast_shapes(x.shape, mask.shape)
    return _index(x.expand(shape), [mask.expand(shape)])


OPERATORS: dict[_torch.OpOverload, Callable[..., Any]] = {
    operator: _computed_now(operator)
    for operator in (
        aten.bincount.default,
        aten.equal.default,
        aten.nonzero.default,
        aten.repeat_interleave.Tensor,
        aten._unique2.default,
        aten.unique_consecutive.default,
        aten.unique_dim.default,
    )
} | {aten.index.Tensor: _index, aten.masked_select.default: _masked_select}

"""Writes to slices of tensors at positions that are numbers of Python, as writes by an index.

    queue[:, p : p + n] = keys   ->   queue.index_copy_(1, p + arange(n), keys)

One program serves all positions of a ring buffer, such as the queue of momentum contrast.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from abele.functions.varying import is_varying

_KINDS = (int, slice, type(None), type(...))


def write(tensor: torch.Tensor, index: Any, value: Any) -> bool:
    """Write to a tensor if the position or the value is a number that changes with each call.

    Returns:
        False if neither does; nothing is written.
    """
    items: list[Any] = [*cast("Any", index)] if isinstance(index, tuple) else [index]
    if any(map(_varies, items)):
        dim, positions, rest = _selected(tensor, items)
        part = tensor.index_select(dim, positions)
        if not write(part, rest, value):
            part[rest] = value
        tensor.index_copy_(dim, positions, part)
    elif is_varying(value):
        tensor[index] = value.rounded(tensor.dtype)
    else:
        return False
    return True


def _selected(tensor: torch.Tensor, items: list[Any]) -> tuple[int, torch.Tensor, tuple[Any, ...]]:
    """Return a dimension, the positions that a changing item selects there, and the other items.

    Raises:
        CaptureError: they do not follow from the numbers as for a slice of one length within the
            tensor. Python clips others, and counts negative positions from the end.
    """
    at = [*map(_varies, items)].index(True)
    item, before = items[at], items[:at]
    is_slice = type(item) is slice
    start, stop, step = _bounds(item) if is_slice else (item, item + 1, None)
    known = all(is_varying(each) or type(each) in _KINDS for each in items)
    if not (known and is_varying(start) and is_varying(stop) and step in (None, 1)):
        return next(filter(is_varying, _bounds(item))).refuse()
    taking = [each is not None and each is not ... for each in items]
    dim = tensor.dim() - sum(taking[at:]) if ... in before else sum(taking[:at])
    size = tensor.shape[dim] if 0 <= dim < tensor.dim() else 0
    count = stop.number - start.number
    start.require(_are_bounds, stop, count, size)
    first = start.rounded(torch.int64).to(tensor.device)
    positions = first + torch.arange(count, device=tensor.device)
    return dim, positions, (*before, slice(None) if is_slice else 0, *items[at + 1 :])


def _varies(item: Any) -> bool:
    return any(map(is_varying, _bounds(item)))


def _bounds(item: Any) -> list[Any]:
    return [item.start, item.stop, item.step] if type(item) is slice else [item]


def _are_bounds(start: int, stop: int, count: int, size: int) -> bool:
    return 0 <= start < stop <= size and stop - start == count

"""Elementwise results of which only slices are read, one by one.

    gates = product + bias                   input = sigmoid(product[:, :n] + bias[:n])
    input = sigmoid(gates[:, :n])      ->    cell = tanh(product[:, n:] + bias[n:])
    cell = tanh(gates[:, n:])                state = input * cell
    state = input * cell

A loop over all of ``gates`` could not be the loop over ``state``, which has fewer elements. Loops
over its slices can, and ``gates`` needs no memory then.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence

import torch

from abele.targets.translation.operations import Operation, Pointwise
from abele.targets.translation.places import Buffer, Kind, Place

New = Callable[[tuple[int, ...], torch.dtype], Place]


def sliced_results(operations: Sequence[Operation], new: New) -> list[Operation]:
    """Compute results slice by slice of which only slices are read.

    Args:
        operations: in order; tensors lie where they stay.
        new: makes memory.
    """
    readers: dict[Buffer, dict[Operation, None]] = {}
    writers: collections.Counter[Buffer] = collections.Counter()
    for each in operations:
        writers.update({place.buffer for place in each.writes})
        for place in each.reads:
            readers.setdefault(place.buffer, {})[each] = None
    result: list[Operation] = []
    for each in reversed(operations):
        parts: list[Operation] = [each]
        if isinstance(each, Pointwise) and writers[each.result.buffer] == 1:
            parts = _in_slices(each, list(readers.get(each.result.buffer, ())), new)
        if parts != [each]:  # what it reads is now read by the parts
            for place in each.reads:
                readers[place.buffer].pop(each, None)
                readers[place.buffer].update(dict.fromkeys(parts))
        result += reversed(parts)
    result.reverse()
    for position, each in enumerate(result):
        each.position = position
    return result


def _in_slices(made: Pointwise, readers: Sequence[Operation], new: New) -> list[Operation]:
    """Return the operation, or those that compute the slices that others read."""
    whole = made.result
    if whole.buffer.kind is not Kind.ARENA or not (whole.whole and whole.contiguous):
        return [made]
    if not whole.size:  # steps between rows of nothing are 0
        return [made]
    if not all(isinstance(each, Pointwise) for each in readers) or not _is_broadcast(made):
        return [made]
    read = (p for each in readers for p in each.reads if p.buffer is whole.buffer)
    slices = {part: _starts(whole, part) for part in read}
    size = sum(part.size for part in slices)
    if len(slices) < 2 or size > whole.size:  # elements would be computed twice
        return [made]
    results: dict[Place, Place] = {}
    parts: list[Operation] = []
    for part, starts in slices.items():
        if starts is None:
            return [made]
        results[part] = new(part.shape, part.dtype)
        parts.append(_part(made, starts, results[part]))
    for each in readers:
        assert isinstance(each, Pointwise)
        each.reads = [results.get(place, place) for place in each.reads]
        each.operands = [results.get(o, o) if isinstance(o, Place) else o for o in each.operands]
    return parts


def _is_broadcast(made: Pointwise) -> bool:
    """Return whether all operands have the sizes of the result or are broadcast to them."""
    sizes = made.result.shape[::-1]
    return all(
        len(place.shape) <= len(sizes)
        and all(n in (1, size) for n, size in zip(place.shape[::-1], sizes, strict=False))
        for place in made.reads
    )


def _starts(whole: Place, part: Place) -> tuple[int, ...] | None:
    """Return the start of a slice in each dimension; None if it is no slice."""
    if len(part.shape) != len(whole.shape) or part.stride != whole.stride:
        return None
    starts: list[int] = []
    left = part.offset
    for size, stride, taken in zip(whole.shape, whole.stride, part.shape, strict=True):
        start, left = divmod(left, stride)
        if start + taken > size:
            return None
        starts.append(start)
    return tuple(starts)


def _part(made: Pointwise, starts: Sequence[int], result: Place) -> Pointwise:
    """Return the operation restricted to a slice."""
    size = made.result.shape

    def sliced(place: Place) -> Place:
        steps = place.over(size)
        offset = place.offset + sum(a * b for a, b in zip(starts, steps, strict=True))
        return Place(place.buffer, result.shape, steps, offset)

    operands = [sliced(each) if isinstance(each, Place) else each for each in made.operands]
    reads = [each for each in operands if isinstance(each, Place)]
    return dataclasses.replace(made, reads=reads, writes=[result], operands=operands)

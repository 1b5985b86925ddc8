"""Padding of matrix rows by one cache line, against cache set conflicts in GEMMs.

Cache lines that are a multiple of 2 KiB apart share one or two sets of the L1 cache, each of which
holds about eight lines. A GEMM tile reads the same column of more rows than that, and so evicts
lines that it still needs. With a line of padding between rows, each has a set of its own:

    hidden[1024][1024] = relu(product)                hidden[1024][1024 + 16] = relu(product)
    result = multiply(hidden, weight)          ->     result = multiply(hidden, weight)

Only temporary buffers are padded, and only if all of their users are loops, GEMMs and calls that
accept strides.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch

from abele.targets.cpu.emitted.calls.products import ClampedProduct, Product
from abele.targets.cpu.emitted.gemm_epilogues import GemmWithEpilogue
from abele.targets.translation.groups import Unit, tensors
from abele.targets.translation.operations import Operation, Pointwise, StridedCall
from abele.targets.translation.places import Buffer, Kind, Place, contiguous_stride

# Floats of a line; rows of a multiple of so many share sets. Few rows stay in the cache anyway.
_LINE, _SAME_SETS, _LEAST_ROWS = 16, 512, 64

# Who uses a buffer, with the unit whose loop an elementwise operation is part of.
_Users = dict[Operation, Unit]


def pad_leading_dimension(units: Sequence[Unit], returned: Collection[Buffer]) -> None:
    """Pad the rows of GEMM matrices whose rows share cache sets.

    Args:
        units: after fusion of GEMM epilogues.
        returned: buffers of the program's results, which are not padded.
    """
    users: dict[Buffer, _Users] = {}
    for unit in units:
        for operation in unit.operations:
            loop = unit.loop if isinstance(unit, GemmWithEpilogue) else unit
            for place in tensors(operation):
                users.setdefault(place.buffer, {})[operation] = loop
    for buffer, using in users.items():
        length = _row_length(buffer, using)
        if length and buffer.kind is Kind.ARENA and buffer not in returned:
            _part(buffer, length, using)


def _row_length(buffer: Buffer, users: _Users) -> int:
    """Return the row length of a matrix whose rows share cache sets; 0 for other buffers."""
    if buffer.dtype is not torch.float32 or buffer.inside is not None:
        return 0
    for each in users:
        if isinstance(each, Product | ClampedProduct):
            for place in tensors(each):
                row = max(place.stride)
                if place.buffer is buffer and row and row % _SAME_SETS == 0:
                    rows, rest = divmod(buffer.size, row)
                    return row if rows >= _LEAST_ROWS and not rest else 0
    return 0


def _part(buffer: Buffer, length: int, users: _Users) -> None:
    """Pad the rows of a buffer, if all of its users accept other strides."""
    moves: list[tuple[Operation, dict[Place, Place]]] = []
    for operation, unit in users.items():
        moved: dict[Place, Place] = {}
        for index, place in enumerate((*operation.reads, *operation.writes)):
            if place.buffer is not buffer:
                continue
            shape = _shape_of_loop(unit, length) if isinstance(operation, Pointwise) else None
            there = _with_padded_rows(place, length, shape)
            if there is None or not _may_lie(operation, index, there):
                return
            moved[place] = there
        moves.append((operation, moved))
    for operation, moved in moves:
        if isinstance(operation, Pointwise):
            users[operation].shape = _shape_of_loop(users[operation], length)
        operation.move(lambda place, moved=moved: moved.get(place, place))
    buffer.size = buffer.size // length * (length + _LINE)


def _shape_of_loop(unit: Unit, length: int) -> tuple[int, ...]:
    """Return the shape of a loop; a flat loop is split into rows."""
    return (unit.size // length, length) if unit.shape is None else unit.shape


def _with_padded_rows(place: Place, length: int, shape: tuple[int, ...] | None) -> Place | None:
    """Return a view with padded rows; None if strides cannot express it.

    Args:
        place: view of the buffer without padding.
        length: elements of a row.
        shape: of the loop that accesses it, or None.
    """
    sizes, strides = place.shape, place.stride
    in_order = place.contiguous and place.size > 1
    if shape is not None and sizes != shape and in_order and math.prod(shape) == place.size:
        sizes, strides = shape, contiguous_stride(shape)
    last = place.offset % length  # of the elements of the first row, which one is the last
    for size, stride in zip(sizes, strides, strict=True):
        if size > 1 and stride % length:
            last += (size - 1) * stride
    if last >= length:
        return None
    further = [stride + stride // length * _LINE for stride in strides]
    offset = place.offset + place.offset // length * _LINE
    return Place(place.buffer, sizes, tuple(further), offset)


def _may_lie(operation: Operation, index: int, there: Place) -> bool:
    """Return whether an operation accepts other strides for its tensor at an index."""
    if isinstance(operation, Product):
        return operation.count == 1
    if isinstance(operation, StridedCall):
        return index in operation.free and operation.accepts(there)
    return isinstance(operation, Pointwise)

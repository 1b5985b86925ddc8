"""Offset assignment of tensors in one buffer, without overlap of live tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from abele.program.memory import MemoryUse, Piece

ALIGNMENT = 64  # a cache line, and the longest vector
#: Minimum bytes of a planned tensor; malloc allocates smaller tensors.
LEAST = 4096


@dataclasses.dataclass(frozen=True)
class Places:
    """Planned offsets of the large tensors of a program, in allocation order.

    Attributes:
        sizes: bytes that are allocated.
        offsets: bytes from the beginning of the buffer; -1 for tensors outside of it.
        total: bytes of the buffer.
    """

    sizes: list[int]
    offsets: list[int]
    total: int


@dataclasses.dataclass(frozen=True)
class Allocation:
    """A recorded allocation: size, address and lifetime.

    Attributes:
        size: bytes.
        begin: moment, from 1, that no other allocation of the recording has.
        end: moment of the last allocation before it was freed; -1 if it outlived the recording.
        address: of its first byte.
    """

    size: int
    begin: int
    end: int
    address: int


def planned(use: MemoryUse) -> Places | None:
    """Plan the offsets of a program's tensors; None without large tensors.

    Args:
        use: every tensor by itself.
    """
    inside = [each for each in use.pieces if is_inside(use, each)]
    if not inside:
        return None
    each_at, total = _offsets_of_pieces(inside)
    at = dict(zip(map(id, inside), each_at, strict=True))
    large = [each for each in use.pieces if _asked(each) >= LEAST and each.result >= 0]
    large.sort(key=lambda each: (each.first, each.begin, each.result))
    return Places([_asked(each) for each in large], [at.get(id(each), -1) for each in large], total)


def planned_again(allocations: Sequence[Allocation]) -> Places:
    """Plan offsets for the recorded allocations of a run; results are allocated separately."""
    freed = [each for each in allocations if each.end >= 0]
    at, total = offsets([each.size for each in freed], [(each.begin, each.end) for each in freed])
    offset = dict(zip(map(id, freed), at, strict=True))
    sizes = [each.size for each in allocations]
    return Places(sizes, [offset.get(id(each), -1) for each in allocations], total)


def _asked(piece: Piece) -> int:
    return max(piece.size, piece.asked)


def placed(use: MemoryUse) -> MemoryUse:
    """Convert a memory estimate to planned offsets: one shared buffer for all but results.

    Args:
        use: every tensor by itself.
    """
    inside = tuple(each for each in use.pieces if is_inside(use, each))
    _, total = _offsets_of_pieces(inside)
    return dataclasses.replace(
        use,
        basis=f"{use.basis}, at planned places",
        pieces=tuple(each for each in use.pieces if not is_inside(use, each)),
        reserved=use.reserved + total,
        inside=(*use.inside, *inside),
        shared=total,
    )


def is_inside(use: MemoryUse, piece: Piece) -> bool:
    """Return whether a tensor is in the planned buffer: neither a result nor small."""
    last = use.nodes[piece.last]
    returned = last is not None and last.op == "output"
    return piece.size >= LEAST and not returned and piece.result >= 0


def _offsets_of_pieces(pieces: Sequence[Piece]) -> tuple[list[int], int]:
    lives = [((each.first, each.begin), (each.last, each.end)) for each in pieces]
    return offsets([each.size for each in pieces], lives)


def offsets(sizes: Sequence[int], lives: Sequence[tuple[Any, Any]]) -> tuple[list[int], int]:
    """Assign offsets in bytes to tensors by lifetime; return them and the buffer's size.

    The largest tensors are placed first, each into the smallest gap that is free while it lives.

    Args:
        sizes: bytes of each tensor.
        lives: first and last moment of use of each, which can be ordered.
    """
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], lives[i][0], i))
    number = {moment: index for index, moment in enumerate(sorted({m for e in lives for m in e}))}
    result = [0] * len(sizes)
    taken = _Taken(len(sizes))
    total = 0
    for index in order:
        size = -(-sizes[index] // ALIGNMENT) * ALIGNMENT
        first, last = (number[moment] for moment in lives[index])
        result[index] = taken.placed(size, first, last)
        total = max(total, result[index] + size)
    return result, total


class _Taken:
    """Placed tensors as sorted rows: offset, end, first and last moment of use.

    A program has thousands of tensors, and each is compared with all before it, so these are rows
    of one array.
    """

    def __init__(self, most: int):
        self._rows: NDArray[numpy.int64] = numpy.zeros((4, most), numpy.int64)
        self._count = 0

    def placed(self, size: int, first: int, last: int) -> int:
        """Place a tensor and return its offset."""
        offset = self._gap(size, first, last)
        rows, count = self._rows, self._count
        at = int(rows[0, :count].searchsorted(offset))
        rows[:, at + 1 : count + 1] = rows[:, at:count]
        rows[:, at] = offset, offset + size, first, last
        self._count += 1
        return offset

    def _gap(self, size: int, first: int, last: int) -> int:
        rows = self._rows[:, : self._count]
        begins, ends = rows[:2, (rows[2] <= last) & (rows[3] >= first)]
        if not len(begins):
            return 0
        ends = numpy.maximum.accumulate(ends)
        before = numpy.concatenate(([0], ends[:-1]))
        room = begins - before
        fitting = numpy.flatnonzero(room >= size)
        if not len(fitting):
            return int(ends[-1])
        return int(before[fitting[room[fitting].argmin()]])

"""Where each tensor of a program lies in one piece of memory, so that none overlap in time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from abele.program.memory import MemoryUse, Piece

ALIGNMENT = 64  # a cache line, and the longest vector
#: Smaller tensors come from the C library, which keeps them apart from the large ones.
LEAST = 4096


@dataclasses.dataclass(frozen=True)
class Places:
    """Where the large tensors of a program lie, in the order in which it makes them.

    Attributes:
        sizes: bytes that are asked for.
        offsets: in the piece of memory; -1 for those that have no place in it.
        total: bytes of the piece.
    """

    sizes: list[int]
    offsets: list[int]
    total: int


def planned(use: MemoryUse) -> Places | None:
    """Where a program's tensors lie; None if none has a place.

    Args:
        use: every tensor by itself.
    """
    inside = [each for each in use.pieces if is_inside(use, each)]
    if not inside:
        return None
    each_at, total = offsets(inside)
    at = dict(zip(map(id, inside), each_at, strict=True))
    large = [each for each in use.pieces if _asked(each) >= LEAST and each.result >= 0]
    large.sort(key=lambda each: (each.first, each.begin, each.result))
    return Places([_asked(each) for each in large], [at.get(id(each), -1) for each in large], total)


def _asked(piece: Piece) -> int:
    return max(piece.size, piece.asked)


def placed(use: MemoryUse) -> MemoryUse:
    """The same memory in one piece that programs share, but for what the caller gets.

    Args:
        use: every tensor by itself.
    """
    inside = tuple(each for each in use.pieces if is_inside(use, each))
    _, total = offsets(inside)
    return dataclasses.replace(
        use,
        basis=f"{use.basis}, at planned places",
        pieces=tuple(each for each in use.pieces if not is_inside(use, each)),
        reserved=use.reserved + total,
        inside=(*use.inside, *inside),
        shared=total,
    )


def is_inside(use: MemoryUse, piece: Piece) -> bool:
    """Whether a tensor has a place: results outlive the call, and small ones are not worth it."""
    last = use.nodes[piece.last]
    returned = last is not None and last.op == "output"
    return piece.size >= LEAST and not returned and piece.result >= 0


def offsets(pieces: Sequence[Piece]) -> tuple[list[int], int]:
    """Offsets in bytes, and the bytes of all.

    The largest are placed first, each into the smallest gap that is there while it lives.
    """
    order = sorted(range(len(pieces)), key=lambda i: (-pieces[i].size, pieces[i].first, i))
    moments = sorted({moment for piece in pieces for moment in _times(piece)})
    number = {moment: index for index, moment in enumerate(moments)}
    result = [0] * len(pieces)
    taken = _Taken(len(pieces))
    total = 0
    for index in order:
        size = -(-pieces[index].size // ALIGNMENT) * ALIGNMENT
        first, last = (number[moment] for moment in _times(pieces[index]))
        result[index] = taken.placed(size, first, last)
        total = max(total, result[index] + size)
    return result, total


def _times(piece: Piece) -> tuple[tuple[int, int], tuple[int, int]]:
    """The first and the last moment of use, each with its step."""
    return (piece.first, piece.begin), (piece.last, piece.end)


class _Taken:
    """What has a place: offset, its end, the first and the last moment of use; by offset.

    A program has thousands of pieces, and each is compared with all before it, so these are rows of
    one array.
    """

    def __init__(self, most: int):
        self._rows: NDArray[numpy.int64] = numpy.zeros((4, most), numpy.int64)
        self._count = 0

    def placed(self, size: int, first: int, last: int) -> int:
        """The offset of a piece, which is taken from now on."""
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

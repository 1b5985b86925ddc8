"""Where each tensor of a program lies in one piece of memory, so that none overlap in time."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

from abele.program.memory import MemoryUse, Piece

ALIGNMENT = 64  # a cache line, and the longest vector
#: Smaller tensors come from the C library, which keeps them apart from the large ones.
LEAST = 4096


def placed(use: MemoryUse) -> MemoryUse:
    """The same memory in one piece that is kept between calls, but for what the caller gets.

    Args:
        use: every tensor by itself.
    """
    inside = tuple(each for each in use.pieces if is_inside(use, each))
    _, total = offsets(inside)
    return dataclasses.replace(
        use,
        basis=f"{use.basis}, at planned places",
        pieces=tuple(each for each in use.pieces if not is_inside(use, each)),
        reserved=total,
        inside=inside,
        shared=True,
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
    result = [0] * len(pieces)
    taken: list[_Taken] = []  # sorted
    total = 0
    for index in order:
        piece = pieces[index]
        size = -(-piece.size // ALIGNMENT) * ALIGNMENT
        offset = _gap(taken, piece, size)
        result[index] = offset
        bisect.insort(taken, (offset, offset + size, *_times(piece)))
        total = max(total, offset + size)
    return result, total


# Offset, its end, and the first and the last moment of use, each with its step.
_Taken = tuple[int, int, tuple[int, int], tuple[int, int]]


def _times(piece: Piece) -> tuple[tuple[int, int], tuple[int, int]]:
    return (piece.first, piece.begin), (piece.last, piece.end)


def _gap(taken: list[_Taken], piece: Piece, size: int) -> int:
    best, smallest, end = -1, 0, 0
    begins, ends = _times(piece)
    for begin, other_end, first, last in taken:
        if first > ends or last < begins:
            continue
        room = begin - end
        if room >= size and (best < 0 or room < smallest):
            best, smallest = end, room
        end = max(end, other_end)
    return end if best < 0 else best

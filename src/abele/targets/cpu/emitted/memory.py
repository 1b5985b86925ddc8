"""Where each buffer lies in the arena, so that those in use at the same time do not overlap.

Buffers share memory where they need much. Where they need little, each has its own: a thread
writes the same rows of it in every call, and finds them in its cache. Memory that another thread
wrote last would have to come from there, even to be written over.
"""

from __future__ import annotations

import bisect
import contextlib
import mmap
from collections.abc import Iterable, Mapping

import torch

from abele.targets.translation.places import Buffer, Kind

ALIGNMENT = 64  # a cache line, and the longest vector
#: Buffers of so many bytes together do not share memory: as much as caches near two cores hold.
MOST_APART = 1 << 21
# Processors note where few pages lie; products read matrices whose rows are pages apart.
_HUGE_PAGE = 1 << 21


def arranged(lives: Mapping[Buffer, tuple[int, int]]) -> tuple[dict[Buffer, int], int]:
    """Offsets in bytes of all buffers of the arena, and its size; ``lives`` as in ``planned``."""
    apart = _side_by_side(lives)
    return apart if apart[1] <= MOST_APART else planned(lives)


def _side_by_side(buffers: Iterable[Buffer]) -> tuple[dict[Buffer, int], int]:
    """The same where each buffer has memory of its own."""
    own = [each for each in buffers if each.kind is Kind.ARENA and each.size]
    offsets: dict[Buffer, int] = {}
    total = 0
    for buffer in sorted(own, key=lambda each: -each.bytes):
        offsets[buffer] = total
        total += _whole_lines(buffer.bytes)
    return offsets, total


def _whole_lines(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def planned(lives: Mapping[Buffer, tuple[int, int]]) -> tuple[dict[Buffer, int], int]:
    """Offsets in bytes of all buffers of the arena, and its size.

    The largest are placed first, each at the lowest place that is free while it lives.
    """
    buffers = [each for each in lives if each.kind is Kind.ARENA and each.size]
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last
    offsets: dict[Buffer, int] = {}
    total = 0
    for buffer in sorted(buffers, key=lambda each: (-each.bytes, lives[each])):
        first, last = lives[buffer]
        size, offset = _whole_lines(buffer.bytes), 0
        for begin, end, other_first, other_last in placed:
            if other_first > last or other_last < first or end <= offset:
                continue
            if begin >= offset + size:
                break
            offset = end
        offsets[buffer] = offset
        bisect.insort(placed, (offset, offset + size, first, last))
        total = max(total, offset + size)
    return offsets, total


def allocated(size: int) -> torch.Tensor:
    """Memory for an arena of ``size`` bytes: uint8, at least so many, aligned.

    A large one lies in huge pages where the system has them for who asks.
    """
    if size < _HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        memory = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
        return memory[-memory.data_ptr() % ALIGNMENT :]
    pages = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    begin = -torch.frombuffer(pages, dtype=torch.uint8).data_ptr() % _HUGE_PAGE
    with contextlib.suppress(OSError):  # a system without them
        pages.madvise(mmap.MADV_HUGEPAGE, begin, size)
    # What lies before is never touched: it does not count as memory of a tensor.
    return torch.frombuffer(pages, dtype=torch.uint8, offset=begin, count=size)

"""Where each buffer lies in the arena, so that those in use at the same time do not overlap.

Buffers share memory where they need much. Where they need little, each has its own: a thread
writes the same rows of it in every call, and finds them in its cache. Memory that another thread
wrote last would have to come from there, even to be written over.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Mapping

import torch

from abele.targets.translation.places import Buffer, Kind

ALIGNMENT = 64  # a cache line, and the longest vector
#: Buffers of so many bytes together do not share memory: as much as caches near two cores hold.
MOST_APART = 1 << 21
# Processors note where few pages lie; products read matrices whose rows are pages apart.
_HUGE_PAGE = 1 << 21


def arranged(lives: Mapping[Buffer, tuple[int, int]]) -> tuple[dict[Buffer, int], int]:
    """Offsets in bytes of all buffers of the arena, and its size; ``lives`` as in ``planned``."""
    together = (0, 0)  # as if all of them were in use at one time
    apart = planned(dict.fromkeys(lives, together))
    return apart if apart[1] <= MOST_APART else planned(lives)


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
        size = -(-buffer.bytes // ALIGNMENT) * ALIGNMENT
        offset = 0
        for begin, end, other_first, other_last in placed:
            if other_first > last or other_last < first or end <= offset:
                continue
            if begin >= offset + size:
                break
            offset = end
        offsets[buffer] = offset
        placed.append((offset, offset + size, first, last))
        placed.sort()
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

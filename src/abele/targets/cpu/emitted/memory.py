"""Order of units and memory plan of generated code: its arena, and ATen results."""

from __future__ import annotations

import contextlib
import graphlib
import heapq
import itertools
import mmap
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from abele.arena.places import ALIGNMENT, offsets
from abele.program.memory import MemoryUse, Piece
from abele.targets.translation.groups import Unit
from abele.targets.translation.operations import Foreign, StridedCall
from abele.targets.translation.places import Buffer, Kind
from abele.targets.translation.pointwise import HALF

#: First and last unit, by index, that uses each buffer.
Lives = Mapping[Buffer, tuple[int, int]]

# Processors note where few pages lie; products read matrices whose rows are pages apart.
_HUGE_PAGE = 1 << 21


def ordered(units: Sequence[Unit]) -> list[Unit]:
    """Return units in topological order, updates of state as early as possible.

    A unit that updates a slot runs as soon as it can, which frees what it reads; so does a sum of
    16 bits, while they are in a cache. All other units run in program order.
    """
    sorter = graphlib.TopologicalSorter({unit: unit.before for unit in units})
    sorter.prepare()
    number = {unit: index for index, unit in enumerate(units)}

    def entry(unit: Unit) -> tuple[int, int]:
        return 0 if _updates(unit) or _sums_16_bits(unit) else unit.first, number[unit]

    waiting: list[tuple[int, int]] = []
    result: list[Unit] = []
    while sorter.is_active():
        for unit in sorter.get_ready():
            heapq.heappush(waiting, entry(unit))
        unit = units[heapq.heappop(waiting)[1]]
        result.append(unit)
        sorter.done(unit)
    return result


def _updates(unit: Unit) -> bool:
    """Return whether a unit writes an input slot (state)."""
    return any(place.buffer.kind is Kind.INPUT for each in unit.operations for place in each.writes)


def _sums_16_bits(unit: Unit) -> bool:
    """Return whether a unit is a sum that reads 16 bits, which other calls read, too."""
    (first, *others) = unit.operations
    return isinstance(first, StridedCall) and not others and first.reads[0].dtype in HALF


def used_by(unit: Unit) -> list[Buffer]:
    """Return the buffers that a fused unit reads and writes."""
    return [place.buffer for op in unit.operations for place in (*op.reads, *op.writes)]


def planned(lives: Lives) -> tuple[dict[Buffer, int], int]:
    """Return byte offsets of all buffers in the arena, and the arena's size."""
    own = {each: life for each, life in lives.items() if each.kind is Kind.ARENA and each.size}
    at, total = offsets([each.bytes for each in own], list(own.values()))
    return dict(zip(own, at, strict=True)), total


def allocated(size: int) -> tuple[torch.Tensor, Callable[[], None]]:
    """Return an aligned uint8 arena of ``size`` bytes, and a function that frees its pages."""
    if size < _HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        memory = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
        return memory[-memory.data_ptr() % ALIGNMENT :], lambda: None
    pages = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    begin = -torch.frombuffer(pages, dtype=torch.uint8).data_ptr() % _HUGE_PAGE
    with contextlib.suppress(OSError):  # a system without them
        pages.madvise(mmap.MADV_HUGEPAGE, begin, size)
    # What lies before is never touched: it does not count as memory of a tensor.
    arena = torch.frombuffer(pages, dtype=torch.uint8, offset=begin, count=size)
    return arena, lambda: pages.madvise(mmap.MADV_DONTNEED, begin, size)


def memory_use(
    units: Sequence[Unit],
    lives: Lives,
    size: int,
    returned: Collection[Buffer],
    output: torch.fx.Node,
) -> MemoryUse:
    """Return the planned memory of a program: the arena, and results of ATen calls.

    Args:
        units: in execution order.
        lives: first and last unit that uses each buffer; see ``until_code_ends``.
        size: bytes of the arena.
        returned: buffers of the results.
        output: the output node, which is the last step.
    """
    makers, results = _makers(units)
    end = len(units)
    inside: list[Piece] = []
    apart: list[Piece] = []
    for buffer, (first, last) in lives.items():
        if buffer.kind in (Kind.INPUT, Kind.CONSTANT):
            continue
        is_output = buffer.kind is Kind.OUTPUT  # made before anything runs, and not by an operator
        piece = Piece(
            node=makers.get(buffer),
            result=-1 if is_output else results.get(buffer, 0),
            first=0 if is_output else first,
            last=end if buffer in returned else last,
            size=buffer.bytes,
        )
        (inside if buffer.kind is Kind.ARENA else apart).append(piece)
    ours = [not isinstance(unit.operations[0], Foreign) for unit in units]
    nodes = [unit.operations[0].part_of for unit in units]
    return MemoryUse(
        basis="the plan of the emitted code",
        nodes=(*nodes, output),
        pieces=tuple(apart),
        reserved=size,
        inside=tuple(inside),
        bare=frozenset({end, *itertools.compress(range(end), ours)}),
    )


def _makers(
    units: Sequence[Unit],
) -> tuple[dict[Buffer, torch.fx.Node | None], dict[Buffer, int]]:
    """Return the node that computes each buffer, and its index among results of an ATen call."""
    makers: dict[Buffer, torch.fx.Node | None] = {}
    results: dict[Buffer, int] = {}
    for unit in units:
        for operation in unit.operations:
            for place in operation.writes:
                makers.setdefault(place.buffer, operation.part_of)
            if isinstance(operation, Foreign):
                for index, place in enumerate(operation.results):
                    if place is not None:
                        results[place.buffer] = index
    return makers, results


def until_code_ends(units: Sequence[Unit], lives: Lives) -> dict[Buffer, tuple[int, int]]:
    """Extend lifetimes of ATen results to the end of the segment that reads them.

    Code between two ATen calls is one function, so its inputs live until its end.
    """
    ends = list(range(len(units)))
    for index in reversed(range(len(units) - 1)):
        if not any(isinstance(units[each].operations[0], Foreign) for each in (index, index + 1)):
            ends[index] = ends[index + 1]
    return {
        buffer: (first, ends[last] if buffer.kind is Kind.FOREIGN else last)
        for buffer, (first, last) in lives.items()
    }

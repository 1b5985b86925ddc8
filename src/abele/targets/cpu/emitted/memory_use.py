"""How much memory a program needs whose code is written: its arena, and what torch makes beside."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import torch

from abele.program.memory import MemoryUse, Piece
from abele.targets.translation.groups import Unit
from abele.targets.translation.operations import Foreign
from abele.targets.translation.places import Buffer, Kind

Lives = Mapping[Buffer, tuple[int, int]]


def memory_use(
    units: Sequence[Unit],
    lives: Lives,
    size: int,
    returned: Collection[Buffer],
    output: torch.fx.Node,
) -> MemoryUse:
    """What a program needs, every result of torch by itself.

    Args:
        units: in the order in which they run.
        lives: first and last unit that uses each piece of memory; see ``until_code_ends``.
        size: of the arena, in bytes.
        returned: what the caller gets.
        output: the node that returns it, which is the last step.
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
    """The node that makes each buffer, and which of torch's results it is."""
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
    """First and last unit of each piece of memory, where torch's results are freed.

    Code between two calls of torch is one function: whatever it reads is there until its end.
    """
    ends = list(range(len(units)))
    for index in reversed(range(len(units) - 1)):
        if not any(isinstance(units[each].operations[0], Foreign) for each in (index, index + 1)):
            ends[index] = ends[index + 1]
    return {
        buffer: (first, ends[last] if buffer.kind is Kind.FOREIGN else last)
        for buffer, (first, last) in lives.items()
    }

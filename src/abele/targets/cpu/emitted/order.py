"""The order in which units run, and how long each piece of memory is in use."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from abele.targets.translation.groups import Unit
from abele.targets.translation.places import Buffer, Kind


def ordered(units: Sequence[Unit]) -> list[Unit]:
    """An order of the graph's kind in which every unit comes after those it needs.

    A unit that ends with a new value for a slot runs as soon as it can: what it reads is free
    then. Of the others, the first in the program comes first.
    """
    after: dict[Unit, list[Unit]] = {unit: [] for unit in units}
    missing = {unit: len(unit.before) for unit in units}
    for unit in units:
        for each in unit.before:
            after[each].append(unit)
    number = {unit: index for index, unit in enumerate(units)}

    def entry(unit: Unit) -> tuple[int, int]:
        return 0 if _updates(unit) else unit.first, number[unit]

    waiting = [entry(unit) for unit in units if not missing[unit]]
    heapq.heapify(waiting)
    result: list[Unit] = []
    while waiting:
        unit = units[heapq.heappop(waiting)[1]]
        result.append(unit)
        for each in after[unit]:
            missing[each] -= 1
            if not missing[each]:
                heapq.heappush(waiting, entry(each))
    assert len(result) == len(units), "units need each other"
    return result


def _updates(unit: Unit) -> bool:
    """Whether it writes a slot."""
    return any(place.buffer.kind is Kind.INPUT for each in unit.operations for place in each.writes)


def lifetimes(units: Sequence[Unit]) -> dict[Buffer, tuple[int, int]]:
    """First and last unit, by index, that uses each piece of memory."""
    result: dict[Buffer, tuple[int, int]] = {}
    for index, unit in enumerate(units):
        for operation in unit.operations:
            for place in (*operation.reads, *operation.writes):
                first, _ = result.get(place.buffer, (index, index))
                result[place.buffer] = first, index
    return result

"""The order of a program's units on a GPU, and which of them run together."""

from __future__ import annotations

from collections.abc import Sequence

from abele.targets.cuda.emitted import beside
from abele.targets.translation.groups import Unit
from abele.targets.translation.operations import Foreign


def scheduled(units: Sequence[Unit]) -> list[list[Unit]]:
    """Return steps in order: an ATen call, parallel GEMMs, or loops of one launch.

    A launch takes microseconds however little it does, so loops wait until nothing else can run,
    and then all that are ready go at once. Products that leave room go with others that do. What
    has a choice keeps the order of the program, so that memory is free again as soon as there.

    Args:
        units: ``before`` says which have to come first.
    """
    after: dict[Unit, list[Unit]] = {unit: [] for unit in units}
    missing = {unit: len(unit.before) for unit in units}
    for unit in units:
        for each in unit.before:
            after[each].append(unit)
    position = {unit: index for index, unit in enumerate(units)}
    ready = [unit for unit in units if not missing[unit]]
    steps: list[list[Unit]] = []
    while ready:
        ready.sort(key=position.__getitem__)
        others = [unit for unit in ready if isinstance(unit.operations[0], Foreign)]
        step = _first(others) or ready
        steps.append(step)
        ready = [unit for unit in ready if unit not in step]
        for unit in step:
            for each in after[unit]:
                missing[each] -= 1
                if not missing[each]:
                    ready.append(each)
    assert sum(map(len, steps)) == len(units), "units need each other"
    return steps


def _first(others: Sequence[Unit]) -> list[Unit]:
    """Return the first ATen call with those that may run in parallel."""
    room = [unit for unit in others if beside.leaves_room(unit.operations[0])]
    return room[: beside.MOST] if room[:1] == [*others[:1]] else [*others[:1]]

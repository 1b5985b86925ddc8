"""The order of a program's units on a GPU, and which loops are one launch."""

from __future__ import annotations

from collections.abc import Sequence

from abele.targets.translation.groups import Unit
from abele.targets.translation.operations import Foreign


def scheduled(units: Sequence[Unit]) -> list[list[Unit]]:
    """Steps in order: one operator of torch, or loops and sums that are launched together.

    A launch takes microseconds however little it does, so they wait until nothing else can run, and
    then all that are ready go at once.

    Args:
        units: ``before`` says which have to come first.
    """
    after: dict[Unit, list[Unit]] = {unit: [] for unit in units}
    missing = {unit: len(unit.before) for unit in units}
    for unit in units:
        for each in unit.before:
            after[each].append(unit)
    ready = [unit for unit in units if not missing[unit]]
    steps: list[list[Unit]] = []
    while ready:
        others = [unit for unit in ready if isinstance(unit.operations[0], Foreign)]
        step = others[:1] or ready
        steps.append(step)
        ready = [unit for unit in ready if unit not in step]
        for unit in step:
            for each in after[unit]:
                missing[each] -= 1
                if not missing[each]:
                    ready.append(each)
    assert sum(map(len, steps)) == len(units), "units need each other"
    return steps

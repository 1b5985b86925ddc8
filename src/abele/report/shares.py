"""The time of kernels by operator: what a kernel computes of several counts for each in part."""

from __future__ import annotations

import dataclasses

from abele.report.kernel_times import Timing


@dataclasses.dataclass
class Entry:
    """The kernels that compute one operator in one phase.

    Attributes:
        seconds: of all of them; of a kernel that computes several operators, the part of this one.
        least: that they take at least, likewise.
        quarters: likewise of all runs: shortest, quartiles and longest. Kernels vary together at
            worst, so their sums are too far apart rather than too close.
        count: how many.
        by: who computes them.
    """

    seconds: float = 0.0
    least: float = 0.0
    count: int = 0
    by: dict[str, None] = dataclasses.field(default_factory=dict[str, None])
    quarters: list[float] = dataclasses.field(default_factory=lambda: [0.0] * 5)


def by_operator(timing: Timing) -> list[tuple[tuple[str, str], Entry]]:
    """Phase and name of each operator, and its kernels; what takes most time first."""
    entries: dict[tuple[str, str], Entry] = {}
    for kernel in timing.kernels:
        for name, share in kernel.operators:
            entry = entries.setdefault((kernel.phase, name), Entry())
            entry.seconds += share * kernel.seconds
            entry.least += share * min(kernel.least, kernel.seconds)
            entry.count += 1
            entry.by[kernel.what] = None
            for index, seconds in enumerate(kernel.quarters):
                entry.quarters[index] += share * seconds
    return sorted(entries.items(), key=lambda item: -item[1].seconds)

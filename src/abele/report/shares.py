"""The time of kernels by operator: what a kernel computes of several counts for each in part."""

from __future__ import annotations

import dataclasses
import math

from abele.report.journal import Journal
from abele.report.kernel_times import Timing
from abele.report.record import Program, Run
from abele.report.status import steady

#: Runs for timing that took so many times as long as calls did say little of calls.
DISTURBED = 2.0


@dataclasses.dataclass
class Entry:
    """The kernels that compute one operator in one phase.

    Attributes:
        seconds: of all of them; of a kernel that computes several operators, the part of this one.
        least: least seconds of the machine for this work.
        quarters: seconds in all runs: minimum, quartiles and maximum. Kernels vary together at
            worst, so their sums are too far apart rather than too close.
        count: number of kernels.
        by: backends.
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


def runs_in_call(run: Run, program: Program) -> int:
    """Return how often a call runs a program."""
    names = ["device_iterations"]
    if program.name != "apply":
        names += ["gradient_accumulation", "replicas"]
    return math.prod(run.configuration.get(name, 1) for name in names)


def slower(run: Run, journal: Journal) -> float:
    """Return how many times as long as calls the runs took in which kernels were timed.

    0 without either. A call is shorter than its programs together where stages of a pipeline work
    at the same time; this is allowed for.
    """
    later = steady(journal)
    if later is None or not run.programs or any(each.timing is None for each in run.programs):
        return 0.0
    whole = sum(
        runs_in_call(run, each) * each.timing.seconds for each in run.programs if each.timing
    )
    at_once = 1 if run.pipeline is None else max(1, len(run.pipeline.stages))
    return whole / at_once / later.quarters[2] if later.quarters[2] else 0.0

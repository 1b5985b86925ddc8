"""How the kernels of two runs differ: which there are, who computes what, and how long that takes.

Times are of the runs with clocks that each report made. An operator counts as slower or faster if
its times lie outside each other's spread, its medians are more than ``LEAST`` apart, and that is
more than ``PART`` of the program's time. Of fewer than ``MANY`` runs the spread is all of them, as
quartiles of so few would often lie apart by chance; fewer than ``ENOUGH`` say nothing. Where the
machine was slower for one of the runs, all operators were: that is one difference, and an operator
counts only if it is one beside the usual operator, too.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping

from abele.report import record, words
from abele.report.difference import Difference, apart, of_numbers
from abele.report.kernel_times import Timing
from abele.report.record import Run
from abele.report.shares import Entry, by_operator

LEAST, PART = 0.1, 0.01
ENOUGH, MANY = 8, 16
_USUAL = 3  # operators tell what is usual


def of_programs(first: Run, second: Run) -> Iterator[Difference]:
    """Yield what differs in the programs that both runs have."""
    for name, (one, other) in programs_of_both(first, second).items():
        if one.lowering != other.lowering:
            said = f"lowering of {name}"
            yield Difference(kind="kernels", what=said, first=one.lowering, second=other.lowering)
        before, after = _counts(one), _counts(other)
        for operator in sorted(before.keys() | after.keys()):
            if before[operator] != after[operator]:
                counts = before[operator], after[operator]
                yield of_numbers("kernels", f"{operator} in {name}", *counts, str)
        if _comparable(one, other):
            assert one.timing is not None
            assert other.timing is not None
            yield from _times(name, one.timing, other.timing)


def programs_of_both(first: Run, second: Run) -> dict[str, tuple[record.Program, record.Program]]:
    """Return the programs that both runs have, by name."""
    others = {each.name: each for each in second.programs}
    return {each.name: (each, others[each.name]) for each in first.programs if each.name in others}


def not_compared(first: Run, second: Run) -> list[str]:
    """Return why kernels of programs were not compared by time, in sentences."""
    pairs = programs_of_both(first, second)
    said: list[str] = []
    for name, both in pairs.items():
        if _comparable(*both) or not any(each.timing for each in both):
            continue
        why = "only one of the runs was timed"
        if all(each.timing for each in both):
            why = f"fewer than {ENOUGH} runs were timed"
        said.append(f"Times of kernels of {name} are not compared: {why}.")
    if pairs and not any(each.timing for both in pairs.values() for each in both):
        said.append("Times of kernels are not compared: neither run was timed.")
    return said


def _comparable(one: record.Program, other: record.Program) -> bool:
    return all(each.timing and each.timing.all_runs >= ENOUGH for each in (one, other))


def _counts(program: record.Program) -> Counter[str]:
    counts: Counter[str] = Counter()
    for each in program.operators:
        counts[each.name] += each.count
    return counts


def _times(program: str, first: Timing, second: Timing) -> Iterator[Difference]:
    before, after = dict(by_operator(first)), dict(by_operator(second))
    whole = max(first.seconds, second.seconds)
    few = min(first.all_runs, second.all_runs) < MANY
    pace = _pace(before, after, PART * whole)
    if _differ(_sum(before), _sum(after), whole, few=few):
        totals = _sum(before).quarters[2], _sum(after).quarters[2]
        yield of_numbers("kernel time", f"all kernels of {program}", *totals, words.seconds)
    for phase, operator in sorted(before.keys() | after.keys()):
        one = before.get((phase, operator), Entry())
        other = after.get((phase, operator), Entry())
        what = f"{operator} of {phase} in {program}"
        beside = Entry(quarters=[each / pace for each in other.quarters])
        if _differ(one, other, whole, few=few) and _differ(one, beside, whole, few=few):
            medians = one.quarters[2], other.quarters[2]
            yield of_numbers("kernel time", what, *medians, words.seconds, whole=whole)
        if one.count and other.count and set(one.by) != set(other.by):
            names = [", ".join(sorted(each.by)) for each in (one, other)]
            said = f"who computes {what}"
            yield Difference(kind="kernels", what=said, first=names[0], second=names[1])


def _sum(entries: Mapping[tuple[str, str], Entry]) -> Entry:
    """All operators together; they vary together at worst, as kernels of one do."""
    columns = zip(*(each.quarters for each in entries.values()), strict=True)
    return Entry(quarters=[sum(column) for column in columns] or [0.0] * 5)


def _pace(
    before: Mapping[tuple[str, str], Entry], after: Mapping[tuple[str, str], Entry], least: float
) -> float:
    """How many times as long operators take that take long enough; 1 if that are too few."""
    ratios = [
        after[key].quarters[2] / entry.quarters[2]
        for key, entry in before.items()
        if key in after and min(entry.quarters[2], after[key].quarters[2]) > least
    ]
    return statistics.median(ratios) if len(ratios) >= _USUAL else 1.0


def _differ(one: Entry, other: Entry, whole: float, *, few: bool) -> bool:
    spreads = [
        (each.quarters[0], each.quarters[2], each.quarters[4]) if few else each.quarters[1:4]
        for each in (one, other)
    ]
    distance = abs(other.quarters[2] - one.quarters[2])
    least = max(LEAST * min(one.quarters[2], other.quarters[2]), PART * whole)
    return apart(*spreads) and distance > least

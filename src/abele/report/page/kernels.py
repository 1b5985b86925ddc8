"""Times of kernels, compared with the least times of the machine."""

from __future__ import annotations

from abele.report import record, words
from abele.report.journal import Journal
from abele.report.kernel_times import Limits, Timing
from abele.report.page import charts
from abele.report.page.markup import (
    Content,
    Html,
    by_program,
    folded,
    long_table,
    path_of,
    section,
    table,
    tag,
)
from abele.report.shares import DISTURBED, by_operator, slower

_MOST, _MOST_KERNELS = 20, 60


def kernels(run: record.Run, journal: Journal) -> Html | None:
    """Return a table of each program's operators by time, and one of its longest kernels."""
    parts: list[Content] = []
    times = slower(run, journal)
    if times >= DISTURBED:
        said = (
            f"These runs took {times:,.0f} times as long as the program's calls did, so the "
            "machine was busy with something else, and the times say little. abele report RUN "
            "--measure takes them again."
        )
        parts.append(tag("p", tag("b", said, class_="worse")))
    parts += [
        tag("p", f"{each.name} was not timed: {each.untimed}.")
        for each in run.programs
        if each.timing is None and each.untimed
    ]
    timed = [
        (each.name, f"{words.seconds(time.seconds)} a run", time.seconds, _of_program(time))
        for each in run.programs
        if (time := each.timing) is not None
    ]
    parts += [by_program(timed)] if timed else []
    if not parts:
        return None
    return section("Operators by time", _note(run.limits), parts, name="kernels")


def _note(limits: Limits | None) -> Html:
    text = (
        "Measured in runs of their own, on tensors of their own: with a look at the clock between "
        "kernels, and in turns without. These runs are no calls, and none of their times is "
        "among those of calls."
    )
    if limits is not None:
        rates = [f"{rate / 1e9:.0f} GB/s at {words.size(size)}" for size, rate in limits.bandwidths]
        threads = words.count(limits.threads, "thread")
        text += (
            f" The limit is what this machine did with {threads}: "
            f"{words.large(limits.operations)}FLOP/s in a product of matrices, and "
            f"{', '.join(rates)} in a sum of vectors."
        )
    return tag("p", text, class_="soft")


def _of_program(timing: Timing) -> list[Content]:
    whole = timing.attributed + timing.unattributed
    said = (
        f"A run takes {words.seconds(timing.seconds)}. With clocks it took "
        f"{words.seconds(timing.clocked)}: {words.seconds(timing.attributed)} in kernels, "
        f"{words.seconds(timing.unattributed)} ({words.share(timing.unattributed, whole)}) between "
        f"them, {words.seconds(timing.clocks)} for the clocks. "
        f"Means of {words.count(timing.runs, 'run')}, the fastest quarter."
    )
    if timing.made_up:
        said += " The run was over: its state was made up, as inputs are."
    return [tag("p", said), _operators(timing, whole), _longest(timing, whole)]


def _operators(timing: Timing, whole: float) -> Html:
    entries = by_operator(timing)
    top = max((entry.seconds for _, entry in entries), default=0) or 1.0
    rows: list[list[Content]] = [
        [
            tag("code", name),
            phase,
            words.seconds(entry.seconds),
            words.share(entry.seconds, whole),
            charts.part(entry.seconds / top),
            distance(entry.seconds, entry.least),
            f"{entry.count:,}",
            ", ".join(entry.by),
        ]
        for (phase, name), entry in entries
        if entry.seconds
    ]
    heads = ("operator", "phase", "time", "share", "", "limit", "kernels", "computed by")
    return long_table(heads, rows, numbers=(2, 3, 5, 6), most=_MOST)


def distance(seconds: float, least: float) -> str:
    """Format the time as a multiple of the machine's least time; empty if that is unknown."""
    if not least or seconds / least >= 1000:
        return "" if not least else "> 1,000 x"
    return "at it" if seconds <= 1.05 * least else f"{seconds / least:.1f} x"


def _longest(timing: Timing, whole: float) -> Html:
    longest = sorted(timing.kernels, key=lambda each: -each.seconds)[:_MOST_KERNELS]
    rows: list[list[Content]] = [
        [
            words.seconds(each.seconds),
            words.share(each.seconds, whole),
            tag("code", each.what),
            tag("code", _joined([name for name, _ in each.operators]), class_="value"),
            path_of(each.module),
            tag("span", each.line, class_="at"),
            f"{words.large(each.operations / each.seconds)}FLOP/s" if each.operations else "",
            f"{each.bytes / each.seconds / 1e9:.1f} GB/s" if each.bytes else "",
            distance(each.seconds, each.least),
        ]
        for each in longest
        if each.seconds
    ]
    heads = ("time", "share", "kernel", "computes", "module", "line", "work", "memory", "limit")
    title = f"The {len(rows)} longest of {words.count(len(timing.kernels), 'kernel')}"
    return folded(title, table(heads, rows, numbers=(0, 1, 6, 7, 8)))


def _joined(names: list[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

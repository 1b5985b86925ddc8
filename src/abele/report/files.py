"""Files made of a run's record and journal: its page, and its timeline in Chrome's trace format.

Each line of the timeline has bars that do not overlap, unless one is inside the other; the outer
one comes first. Lines of a group are on one clock. Perfetto and speedscope read it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from abele.errors import ReportError
from abele.report import executable_file, instances
from abele.report.instances import runs
from abele.report.journal import Journal, Window, read_journal
from abele.report.page import page
from abele.report.record import Kernel, Program, Run, read_run
from abele.storage.atomic import is_full, write_text
from abele.storage.files import folder_lock

PAGE = "report.html"
TRACE = "trace.json"


def page_in(
    folder: Path, run: Run, journal: Journal, *, alive: bool | None = None, at: Path | None = None
) -> str:
    """Return the page of a run; that of the first instance shows all that are recorded inside.

    Args:
        folder: of the run.
        run: record of the run.
        journal: journal of the run.
        alive: its process is alive; None if unknown.
        at: folder of the page, if it is another one.
    """
    number = instances.number_of(folder)
    others = () if number else instances.others(folder, run)
    if at is not None:
        others = tuple(
            dataclasses.replace(each, folder=os.path.relpath(folder / each.folder, at))
            for each in others
        )
    return page(run, journal, alive=alive, others=others, number=number)


def write_first(folder: Path) -> None:
    """Write the page of instance 0 anew, because another one has news; nothing if there is none.

    Args:
        folder: of the other instance.

    Raises:
        OSError: a file cannot be written.
    """
    first = instances.first_of(folder)
    if first is None:
        return
    with folder_lock(first):
        try:
            run = read_run(first)
        except ReportError:
            return
        write_text(first / PAGE, page_in(first, run, read_journal(first), alive=runs(run.process)))


def write(folder: Path, run: Run, journal: Journal, *, alive: bool | None = None) -> None:
    """Write page and timeline, each at once or not at all.

    Where the disk is full, an older timeline and the kept programs make room for the page.

    Args:
        folder: where they go.
        run: record of the run.
        journal: journal of the run.
        alive: its process is alive; None if unknown.

    Raises:
        OSError: a file cannot be written.
    """
    # Instances write this page too: whoever is last has read what all others have written.
    with folder_lock(folder):
        _write_page(folder, page_in(folder, run, journal, alive=alive))
    write_text(folder / TRACE, json.dumps(trace_of_run(run, journal)))


def _write_page(folder: Path, text: str) -> None:
    """Write a page; where the disk is full, other files make room, at last the older page."""
    room = iter(((TRACE, executable_file.FILE), (PAGE,)))
    while True:
        try:
            write_text(folder / PAGE, text)
            return
        except OSError as error:
            names = next(room, None) if is_full(error) else None
            if names is None:
                raise
        for name in names:
            (folder / name).unlink(missing_ok=True)


_PARTS = {
    "compiling": "left to the compiler",
    "handed": "inputs",
    "computed": "computed",
    "outputs": "outputs",
}


class Span(NamedTuple):
    """A bar: its name, kind, boundaries in seconds, and further values."""

    name: str
    kind: str
    begin: float
    end: float
    details: dict[str, str | int | float] = {}


def lines(run: Run, journal: Journal) -> dict[tuple[str, str], list[Span]]:
    """Return lines that have bars, by group and name: host, timed programs, pipeline stages."""
    every = {
        ("host", "building"): list(_building(run, journal)),
        ("host", "calls"): list(_calls(journal)),
        **{
            (f"{each.name}, timed apart", f"kernels of {each.name}"): list(_kernels(each))
            for each in run.programs
        },
        **_stages(run),
    }
    return {key: spans for key, spans in every.items() if spans}


def _building(run: Run, journal: Journal) -> Iterator[Span]:
    """Stages, and inside of that of passes each pass."""
    stages = journal.of_kind("stage")
    last = journal.moments[-1].at if journal.moments else 0.0
    ends = [*(each.at for each in stages[1:]), last]
    for stage, end in zip(stages, ends, strict=False):  # without stages there is one end
        if stage.what == "calls":
            continue
        details: dict[str, str | int | float] = {}
        if run.build is not None and stage.what == "load":
            details["cache"] = run.build.cache + (f": {run.build.why}" if run.build.why else "")
        yield Span(stage.what, "stage", stage.at, max(stage.at, end), details)
        if stage.what == "passes":
            yield from _passes(run, stage.at, end)


def _passes(run: Run, at: float, end: float) -> Iterator[Span]:
    """Yield the passes one after the other, from the beginning of their stage."""
    for program in run.programs:
        for stamp in program.history:
            if stamp.by == "capture" or at + stamp.seconds > end:
                continue
            name, nodes = f"{stamp.by} of {program.name}", {"nodes after it": stamp.nodes}
            yield Span(name, "pass", at, at + stamp.seconds, dict(nodes))
            at += stamp.seconds


def _calls(journal: Journal) -> Iterator[Span]:
    """Yield calls with their parts, and the time before them."""
    before = 0.0
    for window in journal.windows:
        if window.count == 1:
            yield from _call(window, before)
        else:
            details: dict[str, str | int | float] = {
                "calls": window.count,
                "median call, ms": 1e3 * window.quarters[2],
                "waited before them, ms": 1e3 * window.waited,
                "of that for batches, ms": 1e3 * window.loading,
            }
            name = f"calls {window.first + 1} to {window.first + window.count}"
            begin = max(before, window.at)
            yield Span(name, "call", begin, max(begin, window.until), details)
        before = max(before, window.until)


def _call(window: Window, before: float) -> Iterator[Span]:
    begin = max(before, window.at)
    waits = min(window.waited, begin - before)
    if waits > 0 and window.first:
        # A batch is what is waited for last.
        loads = begin - min(waits, window.loading)
        if loads > begin - waits:
            yield Span("before the call", "wait", begin - waits, loads)
        if begin > loads:
            yield Span("waiting for a batch", "load", loads, begin)
    end = max(begin, window.until)  # calls do not overlap, whatever rounding says
    details = {} if window.loss is None else {"loss": window.loss}
    yield Span(f"call {window.first + 1}", "call", begin, end, dict(details))
    for part, name in _PARTS.items():
        took = getattr(window, part)
        if took > 0:
            yield Span(name, "call", begin, min(end, begin + took))
        begin = min(end, begin + took)


def _kernels(program: Program) -> Iterator[Span]:
    """Yield the program, and inside of it each kernel."""
    timing = program.timing
    if timing is None:
        return
    yield Span(program.name, "kernel", 0.0, timing.clocked)
    before = 0.0
    for kernel in sorted(timing.kernels, key=lambda each: each.began):
        if kernel.seconds <= 0:
            continue
        begin = max(before, kernel.began)
        before = min(timing.clocked, begin + kernel.seconds)
        if before > begin:
            yield Span(_title(kernel), "kernel", begin, before, _details(kernel))


def _title(kernel: Kernel) -> str:
    """Describe the work of a kernel in a few words."""
    names = [name for name, _ in kernel.operators]
    return names[0] if len(names) == 1 else f"{kernel.what} of {', '.join(names[:4])}"


def _details(kernel: Kernel) -> dict[str, str | int | float]:
    return {
        "computed by": kernel.what,
        "phase": kernel.phase,
        "module": kernel.module,
        "line": kernel.line,
        "operations": kernel.operations,
        "bytes": kernel.bytes,
        "least, us": round(1e6 * kernel.least, 3),
    }


def _stages(run: Run) -> dict[tuple[str, str], list[Span]]:
    """Return the tasks of each stage of a pipeline."""
    if run.pipeline is None:
        return {}
    tasks = sorted(run.pipeline.tasks, key=lambda each: each.begin)
    return {
        ("pipeline, one passage", f"stage {stage}: {name}"): [
            Span(
                f"{'backward' if each.backward else 'forward'} {each.micro_batch}",
                *("task", each.begin, each.end),
            )
            for each in tasks
            if each.stage == stage
        ]
        for stage, name in enumerate(run.pipeline.stages)
    }


def trace_of_run(run: Run, journal: Journal) -> dict[str, Any]:
    """Return the trace as JSON values: a process for each clock, a thread for each line."""
    events: list[dict[str, Any]] = []
    processes: dict[str, int] = {}
    for thread, ((group, name), spans) in enumerate(lines(run, journal).items(), 1):
        if group not in processes:
            processes[group] = len(processes) + 1
            events.append(_named("process_name", processes[group], 0, group))
        place = {"pid": processes[group], "tid": thread}
        events.append(_named("thread_name", processes[group], thread, name))
        events += [
            {
                "ph": "X",
                "name": span.name,
                "cat": span.kind,
                **place,
                "ts": round(1e6 * span.begin, 3),
                "dur": round(1e6 * (span.end - span.begin), 3),
                "args": span.details,
            }
            for span in spans
        ]
    events += [
        {
            "ph": "i",
            "s": "g",
            "name": f"{moment.kind}: {moment.type or moment.what}"[:200],
            "cat": moment.kind,
            "pid": processes.get("host", 0),
            "tid": 0,
            "ts": round(1e6 * moment.at, 3),
            "args": {"what": moment.what[:2000], "where": moment.where},
        }
        for moment in journal.of_kind("error", "note", "end")
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"name": run.name}}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}

"""Timeline of a run in the format of Chrome's trace viewer, which Perfetto and speedscope read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from abele.report.journal import Journal, Window
from abele.report.kernel_times import Kernel
from abele.report.record import Program, Run

_PARTS = {
    "compiling": "left to the compiler",
    "handed": "inputs",
    "computed": "computed",
    "outputs": "outputs",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """A named interval of time.

    Attributes:
        name: name.
        kind: ``stage``, ``pass``, ``call``, ``load``, ``wait``, ``kernel`` or ``task``.
        begin: in seconds.
        end: in seconds.
        details: further text.
    """

    name: str
    kind: str
    begin: float
    end: float
    details: dict[str, str | int | float] = dataclasses.field(
        default_factory=dict[str, "str | int | float"]
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """Bars that do not overlap, unless one is inside the other; the outer one comes first.

    Attributes:
        name: of the line.
        group: lines of a group are on one clock.
        spans: in the order of their beginnings.
    """

    name: str
    group: str
    spans: tuple[Span, ...]


def lines(run: Run, journal: Journal) -> list[Line]:
    """All lines that have bars: of the host, of each timed program, of the stages of a pipeline."""
    all_lines = [
        Line(name="building", group="host", spans=tuple(_building(run, journal))),
        Line(name="calls", group="host", spans=tuple(_calls(journal))),
        *(
            Line(name=f"kernels of {each.name}", group=f"{each.name}, timed apart", spans=spans)
            for each in run.programs
            if (spans := tuple(_kernels(each)))
        ),
        *_stages(run),
    ]
    return [line for line in all_lines if line.spans]


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
        yield Span(
            name=stage.what, kind="stage", begin=stage.at, end=max(stage.at, end), details=details
        )
        if stage.what == "passes":
            yield from _passes(run, stage.at, end)


def _passes(run: Run, at: float, end: float) -> Iterator[Span]:
    """Yield the passes one after the other, from the beginning of their stage."""
    for program in run.programs:
        for stamp in program.history:
            if stamp.by == "capture" or at + stamp.seconds > end:
                continue
            yield Span(
                name=f"{stamp.by} of {program.name}",
                kind="pass",
                begin=at,
                end=at + stamp.seconds,
                details={"nodes after it": stamp.nodes},
            )
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
            yield Span(
                name=name, kind="call", begin=begin, end=max(begin, window.until), details=details
            )
        before = max(before, window.until)


def _call(window: Window, before: float) -> Iterator[Span]:
    begin = max(before, window.at)
    waits = min(window.waited, begin - before)
    if waits > 0 and window.first:
        # A batch is what is waited for last.
        loads = begin - min(waits, window.loading)
        if loads > begin - waits:
            yield Span(name="before the call", kind="wait", begin=begin - waits, end=loads)
        if begin > loads:
            yield Span(name="waiting for a batch", kind="load", begin=loads, end=begin)
    details: dict[str, str | int | float] = {} if window.loss is None else {"loss": window.loss}
    end = max(begin, window.until)  # calls do not overlap, whatever rounding says
    name = f"call {window.first + 1}"
    yield Span(name=name, kind="call", begin=begin, end=end, details=details)
    for part, name in _PARTS.items():
        took = getattr(window, part)
        if took > 0:
            yield Span(name=name, kind="call", begin=begin, end=min(end, begin + took))
        begin = min(end, begin + took)


def _kernels(program: Program) -> Iterator[Span]:
    """Yield the program, and inside of it each kernel."""
    timing = program.timing
    if timing is None:
        return
    yield Span(name=program.name, kind="kernel", begin=0.0, end=timing.clocked)
    before = 0.0
    for kernel in sorted(timing.kernels, key=lambda each: each.began):
        if kernel.seconds <= 0:
            continue
        begin = max(before, kernel.began)
        before = min(timing.clocked, begin + kernel.seconds)
        if before > begin:
            yield Span(
                name=title_of(kernel),
                kind="kernel",
                begin=begin,
                end=before,
                details=_details(kernel),
            )


def title_of(kernel: Kernel) -> str:
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


def _stages(run: Run) -> Iterator[Line]:
    shown = run.pipeline
    for stage, name in enumerate(shown.stages if shown is not None else ()):
        assert shown is not None
        tasks = sorted((e for e in shown.tasks if e.stage == stage), key=lambda e: e.begin)
        spans = [
            Span(
                name=f"{'backward' if each.backward else 'forward'} {each.micro_batch}",
                kind="task",
                begin=each.begin,
                end=each.end,
            )
            for each in tasks
        ]
        yield Line(name=f"stage {stage}: {name}", group="pipeline, one passage", spans=tuple(spans))


def trace_of_run(run: Run, journal: Journal) -> dict[str, Any]:
    """Return the trace as JSON values: a process for each clock, a thread for each line."""
    events: list[dict[str, Any]] = []
    processes: dict[str, int] = {}
    for thread, line in enumerate(lines(run, journal), 1):
        if line.group not in processes:
            processes[line.group] = len(processes) + 1
            events.append(_named("process_name", processes[line.group], 0, line.group))
        process = processes[line.group]
        events.append(_named("thread_name", process, thread, line.name))
        for span in line.spans:
            events.append(
                {
                    "ph": "X",
                    "name": span.name,
                    "cat": span.kind,
                    "pid": process,
                    "tid": thread,
                    "ts": round(1e6 * span.begin, 3),
                    "dur": round(1e6 * (span.end - span.begin), 3),
                    "args": span.details,
                }
            )
    for moment in journal.of_kind("error", "note", "end"):
        events.append(
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
        )
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"name": run.name}}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}

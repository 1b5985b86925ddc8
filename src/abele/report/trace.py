"""A run as a trace that Perfetto and chrome://tracing show.

Format: "Trace Event Format", google/catapult, the JSON object form; times in microseconds.
"""

from __future__ import annotations

from typing import Any

from abele.report.journal import Journal
from abele.report.record import Run
from abele.report.spans import lines


def of_run(run: Run, journal: Journal) -> dict[str, Any]:
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

"""Traces that chrome://tracing and Perfetto show: a JSON list of events.

Format: "Trace Event Format", google/catapult, the JSON array form. Its readers accept a list whose
end is missing, so a process that is killed leaves a readable file.
"""

import json
import threading
from pathlib import Path
from typing import Any, TextIO

Event = dict[str, Any]


def span(
    name: str, category: str, begin: int, end: int, *, thread: int, pid: int = 0, **details: Any
) -> Event:
    """Return a bar.

    Args:
        name: written on it.
        category: groups bars that can be shown and hidden together.
        begin: in ns of ``time.perf_counter_ns``.
        end: likewise.
        thread: the row it is drawn in.
        pid: the process that the row belongs to.
        details: shown when it is clicked.
    """
    event = {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": thread, "args": details}
    return {**event, "ts": begin / 1e3, "dur": (end - begin) / 1e3}


def process(name: str, pid: int = 0) -> Event:
    """Return the name of a process."""
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}


def thread(number: int, name: str, pid: int = 0) -> Event:
    """Return the event that names a thread's row in the trace."""
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": number, "args": {"name": name}}


class TraceFile:
    """A file to which events are added as they happen; may be used by several threads.

    Args:
        path: the file, made with its folder at once.
        first: the first event.
    """

    def __init__(self, path: Path, first: Event):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()  # a wrapper that is collected meanwhile adds events too
        self._file: TextIO | None = path.open("w", encoding="utf-8")
        self._file.write(f"[\n{json.dumps(first)}")

    def add(self, event: Event) -> None:
        """Write an event."""
        with self._lock:
            if self._file is not None:
                self._file.write(f",\n{json.dumps(event)}")

    def close(self) -> None:
        """End the list; later events are dropped."""
        with self._lock:
            if self._file is not None:
                self._file.write("\n]\n")
                self._file.close()
                self._file = None

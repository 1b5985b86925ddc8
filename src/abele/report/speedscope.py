"""A run as a file for speedscope: lines of time, and of kernels the modules that they belong to.

Format: https://www.speedscope.app/file-format-schema.json, profiles of type "evented".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from abele.report.journal import Journal
from abele.report.record import Run
from abele.report.spans import Line, Span, lines

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class _Frames:
    """Names, each with a number."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, name: str, line: str = "") -> int:
        return self._numbers.setdefault((name, line), len(self._numbers))

    def listed(self) -> list[dict[str, Any]]:
        return [_frame(name, line) for name, line in self._numbers]


def _frame(name: str, line: str) -> dict[str, Any]:
    """Return a frame; ``line`` is ``FILE:LINE in FUNCTION``."""
    file, _, number = line.partition(" in ")[0].rpartition(":")
    if not file or not number.isdigit():
        return {"name": name}
    return {"name": name, "file": file, "line": int(number)}


def of_run(run: Run, journal: Journal) -> dict[str, Any]:
    """Return the file as JSON values: a profile for each line of time."""
    frames = _Frames()
    profiles = [_profile(line, frames) for line in lines(run, journal)]
    return {
        "$schema": SCHEMA,
        "exporter": f"abele {run.abele}",
        "name": run.name,
        "activeProfileIndex": 0,
        "shared": {"frames": frames.listed()},
        "profiles": profiles,
    }


def _profile(line: Line, frames: _Frames) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    open_: list[tuple[Span, list[int]]] = []

    def close(until: float | None) -> None:
        """Close the spans that are over at a moment; all of them at the end."""
        while open_ and (until is None or open_[-1][0].end <= until):
            span, numbers = open_.pop()
            events.extend(_events("C", reversed(numbers), span.end))

    for span in line.spans:
        close(span.begin)
        stack = [*_modules(span), span.name]
        listed = [frames.number(each) for each in stack[:-1]]
        listed.append(frames.number(span.name, str(span.details.get("line", ""))))
        events.extend(_events("O", listed, span.begin))
        open_.append((span, listed))
    close(None)
    return {
        "type": "evented",
        "name": line.name,
        "unit": "seconds",
        "startValue": min((each["at"] for each in events), default=0.0),
        "endValue": max((each["at"] for each in events), default=0.0),
        "events": events,
    }


def _events(kind: str, numbers: Any, at: float) -> list[dict[str, Any]]:
    return [{"type": kind, "frame": number, "at": round(at, 9)} for number in numbers]


def _modules(span: Span) -> Sequence[str]:
    """Phase and modules of a kernel, the outermost first."""
    if span.kind != "kernel" or not span.details:
        return ()
    module = str(span.details.get("module", ""))
    return [str(span.details["phase"]), *(name for name in module.split("/") if name)]

"""The files that are made of a run's record and journal: its page, and its timelines."""

from __future__ import annotations

import json
from pathlib import Path

from abele.report import speedscope, trace
from abele.report.journal import Journal
from abele.report.page import page
from abele.report.record import Run
from abele.storage.atomic import write_text

PAGE = "report.html"
TRACE = "trace.json"
SPEEDSCOPE = "speedscope.json"


def write(folder: Path, run: Run, journal: Journal, *, alive: bool | None = None) -> None:
    """Write page and timelines, each at once or not at all.

    Args:
        folder: where they go.
        run: what it is.
        journal: what happened.
        alive: its process still runs; None if nobody can say.

    Raises:
        OSError: a file cannot be written.
    """
    write_text(folder / PAGE, page(run, journal, alive=alive))
    write_text(folder / TRACE, json.dumps(trace.of_run(run, journal)))
    write_text(folder / SPEEDSCOPE, json.dumps(speedscope.of_run(run, journal)))

"""The files that are made of a run's record and journal: its page, and its timelines."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from abele.errors import ReportError
from abele.report import executable_file, instances, timelines
from abele.report.instances import runs
from abele.report.journal import Journal, read_journal
from abele.report.page import page
from abele.report.record import Run, read_run
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
    write_text(folder / TRACE, json.dumps(timelines.trace_of_run(run, journal)))


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

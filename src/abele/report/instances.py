"""The instances of a run that were recorded beside each other.

    FOLDER/run.json              of instance 0, whose page shows all of them
    FOLDER/instance_1/run.json   of instance 1, and so on

Those of other hosts have their folders there.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from abele.errors import ReportError
from abele.report.journal import Journal, read_journal
from abele.report.record import FILE, Process, Run, read_run
from abele.storage import temporary

_NAME = re.compile(r"instance_([1-9]\d*)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instance:
    """An instance as its files say it.

    Attributes:
        number: number of the instance, from 0.
        run: record of the run.
        journal: journal of the run.
        alive: its process is alive; None if unknown.
        folder: its name inside that of instance 0; empty for that one.
    """

    number: int
    run: Run
    journal: Journal
    alive: bool | None = None
    folder: str = ""


def name_of(number: int) -> str:
    """Return the name of the folder of an instance that is not the first."""
    return f"instance_{number}"


def runs(process: Process) -> bool | None:
    """Return whether the process of a run is there; None if this machine cannot know."""
    if process.machine != temporary.this_machine():
        return None
    return temporary.runs(process.pid, process.since)


def others(folder: Path, run: Run) -> tuple[Instance, ...]:
    """Return the instances that were recorded inside the folder of the first one.

    Args:
        folder: of instance 0.
        run: its record. Files of an earlier run, or of more instances than there are, do not count.
    """
    beside: list[Instance] = []
    for number in range(1, run.configuration.get("processes", 1)):
        inside = folder / name_of(number)
        journal = read_journal(inside)
        if not (inside / FILE).exists() or journal.modified < run.process.began:
            continue
        try:
            other = read_run(inside)
        except ReportError:  # it has no place on this page; its own command says why
            continue
        beside.append(
            Instance(
                number=number,
                run=other,
                journal=journal,
                alive=runs(other.process),
                folder=inside.name,
            )
        )
    return tuple(beside)


def number_of(folder: Path) -> int:
    """Return which instance is recorded in a folder; 0 where its name does not say so."""
    named = _NAME.fullmatch(folder.resolve().name)
    return int(named.group(1)) if named and first_of(folder) is not None else 0


def first_of(folder: Path) -> Path | None:
    """Return the folder of instance 0, given that of another one; None for any other folder."""
    parent = folder.resolve().parent
    named = _NAME.fullmatch(folder.resolve().name) and (parent / FILE).exists()
    return parent if named else None

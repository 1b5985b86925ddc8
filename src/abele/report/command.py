"""Command ``abele report RUN``: writes the page of a run, or that of a comparison of two."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from abele.errors import ReportError
from abele.report import (
    comparison,
    executable_file,
    facts,
    files,
    only_run,
    read_journal,
    read_run,
    timing,
)
from abele.report.comparison import folder_of
from abele.report.files import PAGE
from abele.report.instances import runs
from abele.report.journal import Journal
from abele.report.page.markup import as_text
from abele.report.record import Run
from abele.report.status import DISTURBED, slower
from abele.storage.atomic import write_text

BUDGET_S = 5.0


def measured(
    folder: Path, run: Run, *, alive: bool | None, again: bool = False, budget_s: float = BUDGET_S
) -> Run:
    """Return the record of a run with the times of its kernels.

    Args:
        folder: of the run; has its executable.
        run: record of the run, returned unchanged if it has times.
        alive: its process is alive; None if unknown.
        again: times that it has are taken anew.
        budget_s: how long each program is run.

    Raises:
        ReportError: the run goes on, ran on another processor, or its executable is gone or cannot
            be used here.
    """
    if run.programs and all(each.timing is not None for each in run.programs) and not again:
        return run
    if alive:
        raise ReportError(
            f"The run in {folder} still goes on, and timing would disturb it. Wait for its end, or "
            "call report(path, measure=True) in the program."
        )
    here = facts.machine().processor
    if here != run.machine.processor:
        raise ReportError(
            f"The run in {folder} was on {run.machine.processor}, this machine has {here}: times "
            "from here would say nothing of it. Time it there."
        )
    executable = executable_file.read(folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(run.machine.threads)
    try:
        return timing.timed(run, executable, None, budget_s)
    finally:
        torch.set_num_threads(threads)


def add_parser(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands, with its line in the list of them."""
    report: argparse.ArgumentParser = commands.add_parser(
        "report", help=summary, description="Makes the page of a run."
    )
    report.add_argument("run", type=Path, help="folder of a run, its run.json, or what it is in")
    report.add_argument("--compare", type=Path, metavar="RUN2", help="say how RUN2 differs")
    report.add_argument(
        "--measure", action="store_true", help="time the operators of a run that is over"
    )
    where = report.add_mutually_exclusive_group()
    where.add_argument(
        "-o", "--output", type=Path, metavar="PAGE", help=f"default: {PAGE} in the run's folder"
    )
    where.add_argument("--text", action="store_true", help="print it as text, and write no page")
    report.set_defaults(command=command, name="report")


def command(parsed: argparse.Namespace) -> int:
    """Make the page, and return the exit status.

    Args:
        parsed: what ``add_parser`` says.

    Raises:
        ReportError: files cannot be read or written.
    """
    output: Path | None = parsed.output
    if output is not None and output.is_dir():
        raise ReportError(f"{output} is a folder. Name the page, such as -o {output / PAGE}.")
    try:
        run = only_run(parsed.run)
        other = None if parsed.compare is None else only_run(parsed.compare)
        if parsed.text:
            print(as_text(_page(run, other, None, measure=parsed.measure)), end="")
        else:
            print(_report(run, other, output, measure=parsed.measure))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ReportError(str(error)) from error
    return 0


def _report(path: Path, other: Path | None, output: Path | None, *, measure: bool) -> Path:
    """Write the page, and return its path."""
    if other is None and output is None:
        run, journal = _read(path, measure=measure)
        files.write(folder_of(path), run, journal, alive=runs(run.process))
        return folder_of(path) / PAGE
    output = output or folder_of(path) / "comparison.html"
    write_text(output, _page(path, other, output.parent, measure=measure))
    return output


def _page(path: Path, other: Path | None, at: Path | None, *, measure: bool) -> str:
    """Return the page as HTML, with links from the folder ``at``."""
    run, journal = _read(path, measure=measure)
    if other is None:
        return files.page_in(folder_of(path), run, journal, alive=runs(run.process), at=at)
    folders = folder_of(path), folder_of(other)
    return comparison.page((run, journal), _read(other, measure=measure), folders)


def _read(path: Path, *, measure: bool) -> tuple[Run, Journal]:
    run, folder = read_run(path), folder_of(path)
    journal = read_journal(folder)
    if measure:
        over = journal.end is not None  # its process may go on with something else
        run = measured(
            folder,
            run,
            alive=False if over else runs(run.process),
            again=slower(run, journal) >= DISTURBED,
        )
        run.write(folder)
    return run, journal

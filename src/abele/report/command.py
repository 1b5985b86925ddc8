"""The command ``abele report RUN``, which writes the HTML page of a run or of two compared runs."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from abele.errors import ReportError
from abele.report import comparison, only_run, read_journal, read_run, status
from abele.report.comparison import folder_of
from abele.report.page import FILE, page
from abele.report.page.markup import as_text
from abele.storage.atomic import write_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add description and arguments of ``abele report`` to its parser."""
    parser.description = "Makes the page of a run."
    parser.add_argument("run", type=Path, help="folder of a run, its run.json, or what it is in")
    parser.add_argument("--compare", type=Path, metavar="RUN2", help="say how RUN2 differs")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-o", "--output", type=Path, metavar="PAGE", help=f"default: {FILE} in the run's folder"
    )
    where.add_argument("--text", action="store_true", help="print it as text, and write no page")
    where.add_argument("--json", action="store_true", help="print JSON, and write no page")


def command(parsed: argparse.Namespace) -> int:
    """Run ``abele report``: write the page and return the exit status.

    Raises:
        ReportError: files cannot be read or written.
    """
    output: Path | None = parsed.output
    if output is not None and output.is_dir():
        raise ReportError(f"{output} is a folder. Name the page, such as -o {output / FILE}.")
    try:
        path = only_run(parsed.run)
        if parsed.json:
            print(json.dumps(_data(path, parsed.compare), indent=1))
            return 0
        if parsed.compare is None:
            name, text = FILE, _page(path)
        else:
            other = only_run(parsed.compare)
            files = comparison.read(path, other)
            name = "comparison.html"
            text = comparison.page(*files, (str(path), str(other)))
        if parsed.text:
            print(as_text(text), end="")
            return 0
        output = output or folder_of(path) / name
        write_text(output, text)
        print(output)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ReportError(str(error)) from error
    return 0


def _data(path: Path, other: Path | None) -> dict[str, Any]:
    """Return the record, journal and state of a run, or the comparison of two runs, for JSON."""
    if other is not None:
        return comparison.why_runs_differ(path, only_run(other)).data()
    run, journal = read_run(path), read_journal(folder_of(path))
    parts = {
        "status": status.status_of(journal, run.process.is_alive()),
        "steady": status.steady(journal),
        "run": run,
        "journal": journal,
    }
    return {name: part and dataclasses.asdict(part) for name, part in parts.items()}


def _page(path: Path) -> str:
    """Return the HTML page of a run."""
    run = read_run(path)
    return page(run, read_journal(folder_of(path)), alive=run.process.is_alive())

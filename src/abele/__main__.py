"""The command line.

abele report RUN     makes the page of a run, also of one that was killed
abele fit SCRIPT     says whether a program fits into a memory
abele stage SCRIPT   divides a program's model into stages of a pipeline
abele port SCRIPT    ports a plain PyTorch program
abele why-different SCRIPT A B
                     says where two ways to run a program part
abele why-different RUN RUN2
                     says how two recorded runs differ
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from abele.differences import command as differences
from abele.errors import AbeleError, ReportError
from abele.fit import command as fit
from abele.port import command as port
from abele.report import comparison, files, read_journal, read_run
from abele.report.files import PAGE
from abele.report.instances import runs
from abele.report.journal import Journal
from abele.report.measured import measured
from abele.report.record import Run
from abele.report.shares import DISTURBED, slower
from abele.stage import command as stage
from abele.storage.atomic import write_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    0, or what a command says of itself; 1 where a file cannot be read or written, and 2 from a
    command whose answer may be 1.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    parsed = _parser().parse_args(given[:end])
    parsed.rest = given[end + 1 :]  # for a program that the command runs
    try:
        return parsed.command(parsed)
    except AbeleError as error:
        print(f"abele {parsed.name}: {error}", file=sys.stderr)
    return getattr(parsed, "cannot", 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="abele", description="Ports programs, and looks at them and at their runs."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    report = commands.add_parser(
        "report", help="make the page of a run", description="Makes the page of a run."
    )
    report.add_argument("run", type=Path, help="folder of a run, or its run.json")
    report.add_argument("--compare", type=Path, metavar="RUN2", help="say how RUN2 differs")
    report.add_argument(
        "--measure", action="store_true", help="time the operators of a run that is over"
    )
    report.add_argument(
        "-o", "--output", type=Path, metavar="PAGE", help=f"default: {PAGE} in the run's folder"
    )
    report.set_defaults(command=_command_report, name="report")
    fit.add_parser(commands)
    stage.add_parser(commands)
    port.add_parser(commands)
    differences.add_parser(commands)
    return parser


def _command_report(parsed: argparse.Namespace) -> int:
    output: Path | None = parsed.output
    if output is not None and output.is_dir():
        raise ReportError(f"{output} is a folder. Name the page, such as -o {output / PAGE}.")
    try:
        print(_report(parsed.run, parsed.compare, output, measure=parsed.measure))
    except OSError as error:
        raise ReportError(str(error)) from error
    return 0


def _report(path: Path, other: Path | None, output: Path | None, *, measure: bool) -> Path:
    run, journal = _read(path, measure=measure)
    if other is None:
        if output is None:
            files.write(_folder(path), run, journal, alive=runs(run.process))
            return _folder(path) / PAGE
        text = files.page_in(_folder(path), run, journal, alive=runs(run.process), at=output.parent)
    else:
        output = output or _folder(path) / "comparison.html"
        text = comparison.page((run, journal), _read(other, measure=measure))
    write_text(output, text)
    return output


def _read(path: Path, *, measure: bool) -> tuple[Run, Journal]:
    run, folder = read_run(path), _folder(path)
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


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


if __name__ == "__main__":
    sys.exit(main())

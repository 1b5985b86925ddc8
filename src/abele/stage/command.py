"""``abele stage SCRIPT --ipus N``: divides a program's model into stages."""

from __future__ import annotations

import argparse
from json import dumps
from typing import Any

from abele.errors import LimitError, StageError
from abele.fit import limits
from abele.fit.command import STATUS, ask, of_script, show
from abele.fit.questions import Question, Report


def add_parser(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands, with its line in the list of them."""
    parser = of_script(
        commands,
        "stage",
        "--ipus N [--limit LIMIT] [--measure] [--run]",
        summary=summary,
        description="Runs SCRIPT up to its first compile and divides the model into stages that "
        "take equally long and fit into memory. Exits with 0 if they fit, 3 if they do not, 4 if "
        "that is uncertain; with --run as SCRIPT does.",
    )
    parser.add_argument("--ipus", type=int, required=True, metavar="N", help="how many devices")
    parser.add_argument(
        "--limit",
        default="mk2",
        metavar="LIMIT",
        help="memory of each: mk2 or a size such as 8GiB (default: mk2)",
    )
    parser.add_argument(
        "--measure", action="store_true", help="run stages, and balance them by their times"
    )
    parser.add_argument("--run", action="store_true", help="go on with these stages")
    parser.set_defaults(command=command)


def command(parsed: argparse.Namespace) -> int:
    """Answer and return the exit status.

    Args:
        parsed: what ``add_parser`` says, and in ``rest`` the arguments of the script.

    Raises:
        StageError: there are no such stages, or the script compiles nothing.
        FitError: there is no such limit or script, or the script fails.
    """
    if parsed.ipus < 1:
        raise StageError(f"--ipus {parsed.ipus} leaves nothing to run on. Give 1 or more.")
    of_device(parsed.limit)  # before the script does anything
    wanted = {
        "devices": parsed.ipus,
        "limit": parsed.limit,
        "measure": parsed.measure,
        "json": parsed.json,
    }
    question = Question(command="stage", wanted=wanted, goes_on=parsed.run)
    called = f"stage {parsed.script} --ipus {parsed.ipus}"
    report = ask(question, parsed.script, parsed.rest, called)
    if report is None:
        return 0
    show(report, as_json=parsed.json, command="stage")
    return STATUS[report.data()["verdict"]]


def shown(report: Report, *, json: bool) -> str:
    """Format a report as text or JSON."""
    return dumps(report.data(), indent=1) if json else str(report)


def of_device(name: str) -> limits.Limit:
    """Return the memory of one device: an IPU's, or a size.

    Raises:
        LimitError: the name is neither.
    """
    if name == limits.MK2:
        return limits.of_ipus(1)
    try:
        return limits.of_size(name)
    except LimitError as error:
        raise LimitError(f"{error} Or {limits.MK2}: the memory of an IPU.") from None

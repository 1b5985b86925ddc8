"""The command ``abele port SCRIPT -o OUT``, which makes PopTorch programs of plain PyTorch."""

from __future__ import annotations

import argparse
from pathlib import Path

from abele.errors import PortError
from abele.port import files
from abele.port.engine import Port, port, summary
from abele.port.finding import Verdict

#: Exit status for the worst verdict of a program.
STATUS = {Verdict.MATCH: 0, Verdict.MODIFIED: 0, Verdict.MANUAL: 3, Verdict.BLOCKED: 4}


_DEEP = (
    "a statement of {} is nested too deeply: a sum of thousands of terms or a chain of as many "
    "calls, for example. Write it in parts, or read the data from a file"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add description and arguments of ``abele port`` to its parser."""
    parser.usage = (
        "abele port [-h] (-o OUT [--check STEPS] | --scan) [--to TARGET] "
        "[--verbose] SCRIPT [-- ARG ...]"
    )
    parser.description = (
        "Makes a PopTorch program of SCRIPT, a program of plain PyTorch, with what it imports from "
        "its folder, or of all files of a folder. Plain PyTorch need not become a PopTorch program "
        "to run on abele: abele.compile trains it as it stands (docs/compile.md). New files are "
        "written to OUT; the program itself is not touched. Exits with 0 if no line is left to do, "
        "1 if --check finds a difference, or a file is not there, 2 if --check cannot compare, 3 "
        "if lines are left to do by hand or nothing would run on abele, 4 if it is blocked."
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="a Python program, or a folder")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("-o", "--output", type=Path, metavar="OUT", help="folder for the port")
    where.add_argument("--scan", action="store_true", help="only say what would happen")
    parser.add_argument(
        "--check",
        type=_steps,
        metavar="STEPS",
        help="then run SCRIPT and its port with ARG ... and compare so many updates, bit for bit",
    )
    parser.add_argument(
        "--to",
        choices=("poptorch", "popdist", "torch"),
        default="poptorch",
        help="what it becomes (default: poptorch); popdist: also run in several instances, started "
        "by poprun; torch: the way back, a PopTorch program in plain PyTorch",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="name every line, also unchanged ones"
    )


def command(parsed: argparse.Namespace) -> int:
    """Run ``abele port`` and return the exit status.

    Raises:
        PortError: files cannot be read or written.
    """
    _require_sense(parsed)
    try:
        project = files.read(parsed.script)
        result = port(project, popdist=parsed.to == "popdist", to=parsed.to)
    except (RecursionError, MemoryError) as error:
        raise PortError(_DEEP.format(parsed.script)) from error
    blocked = result.verdict is Verdict.BLOCKED
    if not parsed.scan and not blocked:
        files.write(result, parsed.script, parsed.output)
    print(summary(result, verbose=parsed.verbose))
    if not parsed.scan and not blocked:
        print(f"written: {parsed.output}; what changed and why: {parsed.output / files.SUMMARY}")
    if parsed.check and not blocked:
        return _check(parsed) or _status(result)
    return _status(result)


def _status(result: Port) -> int:
    """Return the exit status of a port; at least 3 if no part of the port would run on abele."""
    return STATUS[result.verdict] if result.runs else max(STATUS[result.verdict], 3)


def _steps(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of steps; 20 is a good one")
    return int(text)


def _require_sense(parsed: argparse.Namespace) -> None:
    if parsed.rest and not parsed.check:
        arguments = " ".join(parsed.rest)
        raise PortError(f"arguments after -- are for --check, which is not asked for: {arguments}")
    if parsed.check and parsed.scan:
        raise PortError("--scan writes no port that --check could run; give -o OUT")
    if parsed.check and parsed.script.is_dir():
        raise PortError(f"--check runs a script; {parsed.script} is a folder")


def _check(parsed: argparse.Namespace) -> int:
    """Run an original and its port, print the first divergence, and return the exit status."""
    from abele.port.check import checked  # which imports torch

    port_of = parsed.output / parsed.script.name
    back = parsed.to == "torch"
    return checked(parsed.script, port_of, parsed.check, parsed.rest, back=back)

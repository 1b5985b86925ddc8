"""``abele why-different SCRIPT A B``: where two ways to run a program part."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from abele.differences.finding import why_different
from abele.differences.settings import setting
from abele.differences.subject import of_script


def add_parser(commands: Any) -> None:
    """Add the command to a parser's commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "why-different",
        help="say where two ways to run a program part",
        usage="abele why-different [-h] [--json] SCRIPT A B [-- ARG ...]",
        description="Runs SCRIPT up to its first training step and computes that step in two ways "
        "and in float64. Exits with 0 if the two are equal but for rounding, 1 if they part, 2 if "
        "that cannot be said.",
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="a Python program")
    ways = "reference, cpu, cuda, a lowering as cpu:emitted, half, bfloat16 or float64"
    parser.add_argument("first", metavar="A", help=ways)
    parser.add_argument("second", metavar="B", help="another of these")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(command=command, name="why-different", cannot=2)


def command(parsed: argparse.Namespace) -> int:
    """Answer and return the exit status.

    Args:
        parsed: what ``add_parser`` says, and in ``rest`` the arguments of the script.

    Raises:
        DifferenceError: there is no such setting, or it cannot run the program.
        FitError: there is no such script.
        Exception: of the script.
    """
    settings = setting(parsed.first), setting(parsed.second)  # before the script does anything
    subject = of_script(parsed.script, parsed.rest)
    answer = why_different(subject, settings, _say)
    print(json.dumps(answer.data(), indent=1) if parsed.json else answer)
    return answer.status


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"abele: {text}", file=sys.stderr)

"""The command ``abele diff``, which compares two settings of a script, or two recorded runs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from abele.differences.finding import why_different
from abele.differences.subject import of_script, setting
from abele.errors import DifferenceError
from abele.report.comparison import why_runs_differ
from abele.report.record import FILE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add description and arguments of ``abele diff`` to its parser."""
    parser.usage = (
        "abele diff [-h] [--json] SCRIPT A B [-- ARG ...]\n       abele diff [-h] [--json] RUN RUN2"
    )
    parser.description = (
        "Runs SCRIPT up to its first training step and computes that step in two ways and in "
        "float64. Exits with 0 if the two are equal but for rounding, 1 if they part, 2 if that "
        "cannot be said. Of two recorded RUNs, says which options, programs, kernels, targets and "
        "versions differ, and at which update their losses part; runs nothing. Exits with 0 if "
        "nothing differs, 1 if anything does, 2 if that cannot be said."
    )
    ways = "reference, cpu, cuda, a lowering as cpu:emitted, half, bfloat16 or float64"
    subject = f"a Python program; or the folder of a run, or its {FILE}"
    parser.add_argument("script", type=Path, metavar="SCRIPT", help=subject)
    parser.add_argument("first", metavar="A", help=f"{ways}; or another run")
    parser.add_argument("second", metavar="B", nargs="?", help="another of these; not of two runs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(cannot=2)


def command(parsed: argparse.Namespace) -> int:
    """Run ``abele diff``: print the comparison and return the exit status.

    Args:
        parsed: arguments parsed by the parser of ``add_arguments``; ``rest`` is for the script.

    Raises:
        DifferenceError: a setting is unknown or cannot run the program, or the arguments are
            neither a script with two settings nor two runs.
        FitError: there is no such script.
        ReportError: there is no such run, or its record cannot be read.
        Exception: the script raised it.
    """
    _check(parsed)
    if parsed.second is None:
        answer = why_runs_differ(parsed.script, Path(parsed.first))
    else:
        settings = setting(parsed.first), setting(parsed.second)  # before the script does anything
        answer = why_different(of_script(parsed.script, parsed.rest), settings, _say)
    print(json.dumps(answer.data(), indent=1) if parsed.json else answer)
    return answer.status


def _check(parsed: argparse.Namespace) -> None:
    """Refuse arguments that are neither a script with two settings nor two runs."""
    script: Path = parsed.script
    if parsed.second is not None:
        if script.is_dir() or script.name == FILE:
            raise DifferenceError(
                f"{script} is no program. Runs are compared by themselves, without settings: "
                f"abele diff {script} RUN2"
            )
        return
    for each in (script, Path(parsed.first)):
        if each.suffix == ".py":
            raise DifferenceError(
                f"{each} is a program, not a run. Compare two ways to run it: abele diff "
                f"{each} reference cpu; or give two folders that runs were recorded in."
            )
    if parsed.rest:
        raise DifferenceError(
            f"Two runs take no arguments, but {' '.join(parsed.rest)!r} is given behind --: runs "
            "that were recorded are compared, and nothing is run."
        )


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"abele: {text}", file=sys.stderr)

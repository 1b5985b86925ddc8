"""The command ``abele stage SCRIPT --ipus N``, which divides a model into pipeline stages."""

from __future__ import annotations

import argparse

from abele.errors import StageError
from abele.fit import limits
from abele.fit.command import add_script, answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add description and arguments of ``abele stage`` to its parser."""
    parser.description = (
        "Runs SCRIPT up to its first compile and divides the model into stages that take equally "
        "long and fit into memory. Exits with 0 if they fit, 3 if they do not, 4 if that is "
        "uncertain."
    )
    add_script(parser, "stage [-h] --ipus N [--limit LIMIT]")
    parser.add_argument("--ipus", type=int, required=True, metavar="N", help="how many devices")
    parser.add_argument(
        "--limit",
        default=limits.MK2,
        metavar="LIMIT",
        help="memory of each: mk2 or a size such as 8GiB (default: mk2)",
    )


def command(parsed: argparse.Namespace) -> int:
    """Run ``abele stage`` and return the exit status.

    Args:
        parsed: arguments parsed by the parser of ``add_arguments``; ``rest`` is for the script.

    Raises:
        StageError: the model cannot be divided into so many stages.
        FitError: there is no such limit or script, or the script fails or compiles nothing.
    """
    if parsed.ipus < 1:
        raise StageError(f"--ipus {parsed.ipus} leaves nothing to run on. Give 1 or more.")
    limits.of_device(parsed.limit)  # before the script does anything
    wanted = {"devices": parsed.ipus, "limit": parsed.limit}
    return answered(parsed, wanted, f"stage {parsed.script} --ipus {parsed.ipus}")

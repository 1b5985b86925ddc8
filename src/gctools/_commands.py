"""Shared parts of the gc commands: number formats, common options, and notes."""

import argparse
import contextlib
import re
import runpy
import signal
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gctools.system import NOT_LINUX, ON_LINUX, System

UNKNOWN = "N/A"


def number(value: float | None, digits: int = 0) -> str:
    """Format a number with a given count of decimals."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def unit(value: float | None, suffix: str, digits: int = 0) -> str:
    """Format a number directly followed by its unit: ``1850MHz``."""
    return UNKNOWN if value is None else f"{value:.{digits}f}{suffix}"


def elapsed(seconds: float | None) -> str:
    """Format a duration in its two largest units: ``9s``, ``4m1s``, ``3h20m``, ``2d5h``."""
    if seconds is None:
        return UNKNOWN
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m"
    return f"{minutes}m{whole % 60}s" if minutes else f"{whole}s"


def clean(text: str) -> str:
    """Remove control characters from text chosen by other users, such as command lines."""
    text = "".join(c if unicodedata.category(c)[0] != "C" else " " for c in text)
    return re.sub(r" +", " ", text).strip()


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Create an argument parser with the common options of the gc commands."""
    made = _of_abele("arguments.py")["Parser"](
        prog=name, description=description, allow_abbrev=False
    )
    version = _of_abele("version.py")["__version__"]
    made.add_argument("--version", action="version", version=f"{name} {version}")
    made.add_argument(
        "-v", "--verbose", action="store_true", help="say on standard error what is not shown, why"
    )
    return made


def parse(made: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments of a gc command; ends the process quietly if its pipe is closed."""
    if arguments is None and sys.stdout is not None:
        if hasattr(signal, "SIGPIPE"):
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        with contextlib.suppress(OSError):  # of a pipe that somebody else has written to
            sys.stdout.reconfigure(errors="replace")  # type: ignore[attr-defined]
    options = made.parse_args(arguments)
    return options if ON_LINUX else made.exit(1, f"{made.prog}: {NOT_LINUX}\n")


def _of_abele(file: str) -> dict[str, Any]:
    """Return what a file of the engine defines, without importing the engine."""
    return runpy.run_path(str(Path(__file__).parents[1] / "abele" / file))


def say_notes(system: System, name: str, *, verbose: bool) -> None:
    """Print the reasons for missing values on standard error if ``--verbose`` is set."""
    for note in system.notes if verbose else ():
        print(f"{name}: {note}", file=sys.stderr)

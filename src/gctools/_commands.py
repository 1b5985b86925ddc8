"""Shared parts of the commands: text for terminals, files and pipes, versions and notes."""

import argparse
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from gctools.system import System

UNKNOWN = "N/A"


def number(value: float | None, digits: int = 0) -> str:
    """Format a number with some digits after the point."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def unit(value: float | None, suffix: str, digits: int = 0) -> str:
    """Format a number directly followed by its unit: ``1850MHz``."""
    return UNKNOWN if value is None else f"{value:.{digits}f}{suffix}"


def gibibytes(value: int | None) -> str:
    """Bytes as GiB."""
    return UNKNOWN if value is None else f"{value / 2**30:.1f}"


def elapsed(seconds: float | None) -> str:
    """Two units: ``9s``, ``4m1s``, ``3h20m``, ``2d5h``."""
    if seconds is None:
        return UNKNOWN
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m"
    return f"{minutes}m{whole % 60}s" if minutes else f"{whole}s"


def count(value: int, one: str) -> str:
    """Format a number with its noun: ``1 socket``, ``2 sockets``."""
    return f"{value} {one}" if value == 1 else f"{value} {one}s"


class OutputError(Exception):
    """Standard output is closed, or cannot be written."""


def width_of(stream: TextIO | None) -> int | None:
    """Columns of a terminal; None for a file or pipe, which takes any width."""
    if stream is None:  # closed, which ``write`` says
        return None
    if os.environ.get("COLUMNS", "").strip("0").isdigit() or stream.isatty():
        return shutil.get_terminal_size().columns
    return None


def clean(text: str) -> str:
    """Without what would move the cursor or change colours: others choose their command lines."""
    text = "".join(c if unicodedata.category(c)[0] != "C" else " " for c in text)
    return re.sub(r" +", " ", text).strip()


def can_print(stream: TextIO, text: str) -> str:
    """Replace characters that a stream's encoding lacks by question marks."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def write(text: str, stream: TextIO | None = None) -> None:
    """Print to a stream (standard output by default) whatever its encoding."""
    chosen = sys.stdout if stream is None else stream
    if chosen is None:
        raise OutputError("standard output is closed")
    try:
        print(can_print(chosen, text), file=chosen, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {error.strerror}") from error


class _Version(argparse.Action):
    """Looks the version up only when somebody asks; importing the engine would load torch."""

    def __init__(self, option_strings: list[str], dest: str):
        super().__init__(option_strings, dest, nargs=0, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.exit(run(parser.prog, lambda: write(f"{parser.prog} {version()}")))


def version() -> str:
    """Return the version of the distribution."""
    # Imported here because only this needs them; commands have to answer at once.
    import importlib.util
    import runpy

    spec = importlib.util.find_spec("abele")
    if spec is None or spec.origin is None:
        return "unknown"
    return runpy.run_path(str(Path(spec.origin).with_name("version.py")))["__version__"]


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every command."""
    made = argparse.ArgumentParser(prog=name, description=description, allow_abbrev=False)
    made.add_argument("--version", action=_Version)
    made.add_argument(
        "-v", "--verbose", action="store_true", help="say on standard error what is not shown, why"
    )
    return made


def run(name: str, command: Callable[[], int | None]) -> int:
    """Run a command; return its exit status, also after Ctrl-C or when its reader has gone."""
    try:
        return command() or 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _write_no_more()
        return 0
    except OutputError as error:
        print(f"{name}: {error}.", file=sys.stderr)
        _write_no_more()
        return 1


def _write_no_more() -> None:
    """Keep the interpreter from another flush when it exits."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say_notes(system: System, name: str, *, verbose: bool) -> None:
    """Says what is missing, to those who asked."""
    for note in system.notes if verbose else ():
        print(f"{name}: {note}", file=sys.stderr)

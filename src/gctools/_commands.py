"""What the commands share: version, notes, and pipes that nobody reads any more."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from gctools.system import System


class _Version(argparse.Action):
    """Looks the version up only when somebody asks; importing the engine would load torch."""

    def __init__(self, option_strings: list[str], dest: str):
        super().__init__(option_strings, dest, nargs=0, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"{parser.prog} {version()}")
        parser.exit()


def version() -> str:
    """The version of the distribution."""
    # Imported here because only this needs them; commands have to answer at once.
    import importlib.util
    import runpy

    spec = importlib.util.find_spec("abele")
    if spec is None or spec.origin is None:
        return "unknown"
    return runpy.run_path(str(Path(spec.origin).with_name("version.py")))["__version__"]


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """A parser with the options of every command."""
    made = argparse.ArgumentParser(prog=name, description=description, allow_abbrev=False)
    made.add_argument("--version", action=_Version)
    made.add_argument(
        "-v", "--verbose", action="store_true", help="say on standard error what is not shown, why"
    )
    return made


def run(command: Callable[[], int]) -> int:
    """Runs a command; returns its exit status, also after Ctrl-C or when its reader has gone."""
    try:
        status = command()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The interpreter would try to flush once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def say_notes(system: System, name: str, *, verbose: bool) -> None:
    """Says what is missing, to those who asked."""
    for note in system.notes if verbose else ():
        print(f"{name}: {note}", file=sys.stderr)

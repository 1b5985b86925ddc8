"""Shared parts of the commands: version, notes, and closed pipes."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from gctools._output import OutputError, write
from gctools.system import System


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

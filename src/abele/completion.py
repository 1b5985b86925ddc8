"""Command ``abele completion``: a script with which a shell completes commands and options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_SHELLS: tuple[str, ...] = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add description and arguments of ``abele completion`` to its parser."""
    parser.description = (
        "Prints the script with which a shell completes commands, options and files."
    )
    parser.add_argument("shell", choices=_SHELLS, help="the shell that reads the script")


def command(parsed: argparse.Namespace) -> int:
    """Run ``abele completion``: print the script for a shell.

    Args:
        parsed: arguments parsed by the parser of ``add_arguments``; ``whole_parser`` returns the
            parser of all commands.
    """
    import shtab  # of an extra

    parser: argparse.ArgumentParser = parsed.whole_parser()
    _complete_files(parser, shtab.FILE)
    print(shtab.complete(parser, shell=parsed.shell))
    return 0


def _complete_files(parser: Any, how: Any) -> None:
    """Have a parser's arguments that are paths completed by names of files."""
    for action in parser._actions:
        if action.type is Path:
            action.complete = how
        for inner in getattr(action.choices, "values", tuple)():
            _complete_files(inner, how)

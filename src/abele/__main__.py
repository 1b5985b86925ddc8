"""The command line.

abele report RUN     makes the page of a run, also of one that was killed
abele fit SCRIPT     says whether a program fits into a memory
abele stage SCRIPT   divides a program's model into stages of a pipeline
abele port SCRIPT    ports a plain PyTorch program
abele why-different SCRIPT A B
                     says where two ways to run a program part
abele why-different RUN RUN2
                     says how two recorded runs differ
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from abele.errors import AbeleError
from abele.version import __version__

#: Modules of commands, and what the list of all of them says.
_COMMANDS = {
    "report": ("abele.report.command", "make the page of a run"),
    "fit": ("abele.fit.command", "say whether a program fits into a memory"),
    "stage": ("abele.stage.command", "divide a model into stages of a pipeline"),
    "port": ("abele.port.command", "port a program, with the reason for each line that changes"),
    "why-different": (
        "abele.differences.command",
        "say where two ways to run a program part, or how two runs differ",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    0, or what a command says of itself; 1 where a file cannot be read or written, and 2 from a
    command whose answer may be 1.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    parser = _parser(given[:1])
    parsed, unknown = parser.parse_known_args(given[:end])
    if unknown:
        hint = "; those of SCRIPT come behind --" if hasattr(parsed, "script") else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    parsed.rest = given[end + 1 :]  # for a program that the command runs
    try:
        return parsed.command(parsed)
    except AbeleError as error:
        print(f"abele {parsed.name}: {error}", file=sys.stderr)
    return getattr(parsed, "cannot", 1)


def _parser(first: Sequence[str]) -> argparse.ArgumentParser:
    """The parser, with the arguments of the command that comes first: most need torch imported."""
    parser = argparse.ArgumentParser(
        prog="abele",
        description="Ports programs, and looks at them and at their runs.",
        epilog="abele COMMAND --help says what a command does and takes.",
    )
    parser.add_argument("--version", action="version", version=f"abele {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (module, summary) in _COMMANDS.items():
        if name in first:
            importlib.import_module(module).add_parser(commands, summary)
        else:
            commands.add_parser(name, help=summary)
    return parser


if __name__ == "__main__":
    sys.exit(main())

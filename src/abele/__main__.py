"""The command line of abele: subcommands, their help and exit statuses."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

from abele import systems
from abele.arguments import Parser
from abele.errors import AbeleError
from abele.version import __version__


class _Command(NamedTuple):
    """A subcommand of ``abele``."""

    module: str
    summary: str
    examples: tuple[str, ...]


_COMMANDS = {
    "doctor": _Command(
        "abele.doctor", "show what this installation has, and what it lacks", ("", "--json")
    ),
    "docs": _Command(
        "abele.docs", "print a page of the documentation", ("", "starting", "port_codes#abp101")
    ),
    "prepare": _Command(
        "abele.compilation.prepare",
        "compile abele's kernels for this machine beforehand",
        ("cpu",),
    ),
    "report": _Command(
        "abele.report.command",
        "make the page of a run",
        ("profile", "profile -o page.html", "profile --json", "after --compare before"),
    ),
    "fit": _Command(
        "abele.fit.command",
        "say whether a program fits into a memory",
        ("train.py", "--limit 8GiB train.py -- --batch-size 64", "--limit mk2 train.py"),
    ),
    "stage": _Command(
        "abele.stage.command",
        "divide a model into stages of a pipeline",
        ("--ipus 4 train.py", "--ipus 4 --limit 8GiB train.py -- --epochs 1"),
    ),
    "port": _Command(
        "abele.port.command",
        "port a program, with the reason for each line that changes",
        (
            "--scan train.py",
            "train.py -o ported",
            "train.py -o ported --check 20 -- --epochs 1",
            "program.py -o plain --to torch",
        ),
    ),
    "diff": _Command(
        "abele.differences.command",
        "say where two ways to run a program diverge, or how two runs differ",
        ("train.py cpu reference", "train.py cpu half", "before after"),
    ),
    "completion": _Command(
        "abele.completion", "print a shell's completion of these commands", ("bash", "fish")
    ),
}
_MISSING = "abele {} needs the package {}, which is not installed: pip install 'abele[{}]'"
_EXTRAS = {"libcst": "port", "shtab": "completion"}  # packages, and the commands that need them
_ALIASES = {"why-different": "diff"}  # names that commands had before


class _Formatter(argparse.HelpFormatter):
    """An argparse formatter that wraps descriptions, but not lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status.

    0, or a command's own status; 1 if a file cannot be read or written, or 2 from a command with
    its own status 1; 130 after Ctrl-C, 141 if the reader of its output has ended.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    words[:1] = [_ALIASES.get(word, word) for word in words[:1]]
    try:
        return _run(words)
    except BrokenPipeError:
        _write_no_more()
        return systems.PIPE_CLOSED
    except ModuleNotFoundError as missing:
        name = _EXTRAS.get(missing.name or "")
        if name is None:
            raise
        print(_MISSING.format(name, missing.name, name), file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        said = " ".join(("interrupted", *map(str, interrupt.args)))
        print(f"{' '.join(('abele', *words[:1]))}: {said}", file=sys.stderr)
    finally:
        _flush()
    return 128 + signal.SIGINT


def _flush() -> None:
    """Flush standard output; report a failure and exit.

    Raises:
        SystemExit: standard output cannot be written.
    """
    if sys.stdout is None:  # closed
        return
    try:
        sys.stdout.flush()
    except OSError as error:
        _write_no_more()
        if isinstance(error, BrokenPipeError):
            raise SystemExit(systems.PIPE_CLOSED) from None
        print(f"abele: standard output cannot be written: {error.strerror}.", file=sys.stderr)
        raise SystemExit(1) from None


def _write_no_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    end = words.index("--") if "--" in words else len(words)
    parser = _parser(words[:1])
    if not words:
        parser.print_help(sys.stderr)
        return 2
    parsed, unknown = parser.parse_known_args(words[:end])
    if unknown:
        hint = "; those of SCRIPT come behind --" if hasattr(parsed, "script") else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    parsed.rest = words[end + 1 :]  # for a program that the command runs
    parsed.whole_parser = _whole_parser
    try:
        return parsed.command(parsed)
    except AbeleError as error:
        print(f"abele {parsed.name}: {error}", file=sys.stderr)
    return getattr(parsed, "cannot", 1)


def _whole_parser() -> argparse.ArgumentParser:
    """Build the parser with the arguments of all subcommands whose packages are installed."""
    lacking = [name for package, name in _EXTRAS.items() if not importlib.util.find_spec(package)]
    return _parser([name for name in _COMMANDS if name not in lacking])


def _parser(first: Sequence[str]) -> argparse.ArgumentParser:
    """Build the parser, with the arguments of the requested subcommands only."""
    parser = Parser(
        prog="abele",
        description="Ports programs, and looks at them and at their runs.",
        epilog="abele COMMAND --help says what a command does and takes.",
    )
    parser.add_argument("--version", action="version", version=f"abele {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in _COMMANDS.items():
        each = commands.add_parser(name, help=command.summary)
        if name in first:
            module = importlib.import_module(command.module)
            each.formatter_class = _Formatter
            examples = (f"abele {name} {words}" for words in command.examples)
            each.epilog = "\n  ".join(("examples:", *examples))
            each.set_defaults(command=module.command, name=name)
            module.add_arguments(each)
    return parser


if __name__ == "__main__":
    sys.exit(main())

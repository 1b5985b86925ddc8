"""Parsing a command line into options and a program; help and version."""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import importlib.util
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from popdist._run.command.options import (
    BY_NAME,
    BY_SHORT,
    NO,
    NO_EFFECT,
    OPTIONS,
    YES,
    Option,
)
from popdist._run.problems import Problem

_DESCRIPTION = """\
Starts PROGRAM in several instances (processes) that train together, and watches over them: the
lines they print come out whole and say which instance they are from; when one fails, the others
are ended, and its last lines and exit status become those of poprun.

  poprun --num-instances 2 python3 train.py --epochs 3
  poprun --num-instances 4 --num-replicas 8 --host a,b[0-2] python3 train.py
  poprun --num-instances 2 --max-restarts 3 python3 train.py    # the program resumes by itself
  srun -n 4 poprun python3 train.py                             # takes the place that Slurm gives
"""
_EPILOG = """\
Options before PROGRAM are poprun's; values follow after a space or "=". Booleans are yes, no, true,
false, 1 or 0. Exit status: that of the instance that failed first, 128 + N if signal N ended it;
2 for a mistake in the command line, 127 for a program that is not there.
"""
_NO_BOOLEANS = ("on", "off", "y", "n", "t", "f", "maybe", "none", "null", "2")
_OWN = ("help", "version", "version-format")


def parse(argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Split a command line and read poprun's part.

    Args:
        argv: Without poprun's own name.

    Returns:
        The options that were given, by key, and the program with its arguments.

    Raises:
        Problem: An unknown option, or a value that an option does not take.
    """
    values: dict[str, Any] = {}
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        if re.fullmatch(r"-v+", word):
            values["verbose"] = values.get("verbose", 0) + len(word) - 1
            continue
        _take(word, rest, values)
    if values.pop("vv", False):
        values["verbose"] = 2
    return values, rest


def convert(option: Option, text: Any) -> Any:
    """Read the value of an option.

    Args:
        option: Its row.
        text: As given on the command line or in a file.

    Raises:
        Problem: It is not of the option's kind.
    """
    word = str(text)
    if option.kind in ("boolean", "flag"):
        if word.lower() in (*YES, *NO):
            return word.lower() in YES
        expected = "yes or no"
    elif option.kind in ("count", "number"):
        least = 1 if option.kind == "count" else 0
        if re.fullmatch(r"[0-9]{1,18}", word) and int(word) >= least:
            return int(word)
        limit = ", of up to 18 digits" if len(word) > 18 else ""
        expected = f"an integer, {least} or more{limit}"
    else:
        if word:
            return word
        expected = "a value"
    raise _not_taken(option, expected, word)


def _take(word: str, rest: list[str], values: dict[str, Any]) -> None:
    name, equals, value = word.partition("=")
    option = _option(name)
    if not equals:
        value = _next(option, rest)
    converted = convert(option, value)
    if option.repeats:
        values.setdefault(option.key, []).append(converted)
    elif option.name == "verbose":
        values["verbose"] = int(converted)
    else:
        values[option.key] = converted


def _next(option: Option, rest: list[str]) -> str:
    if option.kind == "flag":
        return "yes"
    if option.kind == "boolean" and not (rest and rest[0].lower() in (*YES, *NO)):
        if rest and _is_no_program(rest):
            raise _not_taken(option, "yes or no", rest[0])
        return "yes"
    if not rest:
        raise Problem(f"--{option.name} needs a value: --{option.name} {option.metavar}.")
    return rest.pop(0)


def _is_no_program(rest: Sequence[str]) -> bool:
    """Return whether the word before a program can only be a value that an option does not take.

    Without a value the program itself follows, which other hosts may have and this one not.
    """
    word, *more = rest
    if word.startswith("-") or shutil.which(word) or Path(word).exists():
        return False
    return word.lower() in _NO_BOOLEANS or bool(more and shutil.which(more[0]))


def _not_taken(option: Option, expected: str, word: str) -> Problem:
    shown = word if len(word) <= 60 else f"{word[:57]}..."
    return Problem(f"--{option.name} takes {expected}, not {shown!r}.")


def _option(name: str) -> Option:
    bare = name.lstrip("-")
    option = BY_NAME.get(bare) if name.startswith("--") else BY_SHORT.get(bare)
    if option:
        return option
    near = difflib.get_close_matches(bare, [*BY_NAME, *_OWN], n=1, cutoff=0.5)
    hint = f" Did you mean --{near[0]}?" if near else ""
    raise Problem(
        f"poprun has no option {name}.{hint} Options of the program come after the program; "
        "poprun --help lists those of poprun."
    )


def asks_for(argv: Sequence[str]) -> str | None:
    """Return what to print instead of a run: a help or version text, or None."""
    before = _before_program(argv)
    if {"-h", "--help"} & set(before):
        return parser().format_help()
    if any(word.startswith("--version") for word in before):
        return _version(before)
    return None


def _before_program(argv: Sequence[str]) -> list[str]:
    words: list[str] = []
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        words.append(word)
        name, equals, _ = word.partition("=")
        option = BY_NAME.get(name.removeprefix("--")) or BY_SHORT.get(name.removeprefix("-"))
        takes = option is not None and option.kind not in ("flag", "boolean")
        if rest and not equals and (takes or name == "--version-format"):
            words.append(f"={rest.pop(0)}")
    return words


def parser() -> argparse.ArgumentParser:
    """Return a parser that writes the help; `parse` reads, because values may begin with dashes."""
    root = argparse.ArgumentParser(
        "poprun",
        usage="poprun [options] PROGRAM [arguments of the program]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    about = root.add_argument_group("about")
    about.add_argument("-h", "--help", action="store_true", help="print this text")
    about.add_argument("--version", action="store_true", help="print the version")
    about.add_argument("--version-format", metavar="FORMAT", help="text (default) or json")
    groups: dict[str, Any] = {}
    for option in OPTIONS:
        group = groups.get(option.group) or root.add_argument_group(option.group)
        groups[option.group] = group
        names = [f"-{option.short}"] * bool(option.short) + [f"--{option.name}"]
        if option.kind == "flag":
            group.add_argument(*names, action="store_true", help=_described(option))
        else:
            group.add_argument(*names, metavar=metavar(option), help=_described(option))
    return root


def metavar(option: Option) -> str:
    """Return how the value of an option is written in texts."""
    return option.metavar or {"boolean": "BOOL"}.get(option.kind, "")


def _described(option: Option) -> str | None:
    shown = default(option)
    more = f" (default: {shown})" if shown and option.group != NO_EFFECT else ""
    return (option.help + more) or None


def default(option: Option) -> str:
    """Return the default of an option as text; nothing where there is none to tell."""
    if option.kind == "flag" or option.default in (None, ()):
        return ""
    return ("no", "yes")[option.default] if option.kind == "boolean" else str(option.default)


def _version(words: Sequence[str]) -> str:
    text = " ".join(words)
    versions = {"poprun": _own_version(), "torch": _installed("torch")}
    if "json" in text:
        return json.dumps(versions) + "\n"
    return f"poprun {versions['poprun']} (torch {versions['torch']})\n"


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _own_version() -> str:
    # Importing abele would load torch, and a source tree has no installed distribution.
    spec = importlib.util.find_spec("abele")
    if spec and spec.origin:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
        if match := re.search(r'__version__ = "(.+)"', text):
            return match[1]
    return _installed("abele")

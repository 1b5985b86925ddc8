"""Refuses texts that are no Python programs, each with a sentence."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Callable
from typing import TypeVar

from abele.errors import PortError

_Result = TypeVar("_Result")
_MOST_LINES = 10_000
_LONGEST_LINE = 50_000
_DEEPEST = 250
#: What Python 2 reads and Python 3 does not, in the line where Python 3 stops.
_PYTHON_2 = re.compile(
    r"^\s*(print\s+[\"'\w]|print\s*>>|exec\s+[\"'\w]|raise\s+[\w.]+\s*,)"
    r"|\bexcept\s+[\w.]+\s*,\s*\w+\s*:|`[^`]+`|\b0*\d+[lL]\b|<>|\bur[\"']|\b0\d+\b"
)
_DEEP = (
    "is nested too deeply: a sum of hundreds of terms or a chain of as many calls, for example. "
    "Write it in parts, or read the data from a file"
)
_OF_NOTEBOOKS = re.compile(r"\s*(%{1,2}\w|!\w|\?\w)")


def require_readable(name: str, text: str) -> None:
    """Refuse what is no program that somebody has written, in a sentence.

    Args:
        name: of the file.
        text: its content.

    Raises:
        PortError: it is no Python 3, a notebook, or generated.
    """
    lines = text.splitlines()
    if len(lines) > _MOST_LINES or max(map(len, lines), default=0) > _LONGEST_LINE:
        much = (
            f"{_MOST_LINES} lines"
            if len(lines) > _MOST_LINES
            else f"{_LONGEST_LINE} characters in a line"
        )
        raise PortError(
            f"{name} has more than {much} and is taken for a generated file; "
            "port the program that makes it"
        )
    if text.lstrip().startswith("{") and '"nbformat"' in text:
        raise PortError(
            f"{name} is a notebook. Save it as a script first: jupyter nbconvert --to script {name}"
        )
    try:
        _require_flat(name, _quietly(lambda: ast.parse(text)))
    except (RecursionError, MemoryError) as error:
        raise PortError(f"{name} {_DEEP}") from error
    except SyntaxError as error:
        raise PortError(_no_python(name, lines, error)) from error
    except ValueError as error:  # a null byte, in some versions of Python
        raise PortError(f"{name}: this is no Python that can be read ({error})") from error


def require_whole(name: str, text: str) -> None:
    """Refuse what Python reads and does not compile, such as ``return`` outside of a function.

    Args:
        name: of the file.
        text: its content.

    Raises:
        PortError: Python does not compile it.
    """
    try:
        compiled(name, text)
    except SyntaxError as error:
        raise PortError(_no_python(name, text.splitlines(), error)) from error


def compiled(name: str, text: str) -> None:
    """Have Python compile a text, without a word about what it would warn of.

    Args:
        name: of the file.
        text: its content.

    Raises:
        SyntaxError: it is no Python.
    """
    _quietly(lambda: compile(text, name, "exec", dont_inherit=True))


def _quietly(read: Callable[[], _Result]) -> _Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read()


def _require_flat(name: str, module: ast.Module) -> None:
    """Refuse what libcst has no room for, which goes down by calls."""
    waiting: list[tuple[ast.AST, int, int]] = [(module, 1, 1)]
    while waiting:
        node, deep, line = waiting.pop()
        line = getattr(node, "lineno", line)
        if deep > _DEEPEST:
            raise PortError(f"{name}:{line}: this statement {_DEEP}")
        waiting += [(inner, deep + 1, line) for inner in ast.iter_child_nodes(node)]


def _no_python(name: str, lines: list[str], error: SyntaxError) -> str:
    """Return the error message for source that Python 3 cannot parse."""
    number, column = error.lineno or 1, max(error.offset or 1, 1)
    where = f"{name}:{number}:{column}"
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    if _OF_NOTEBOOKS.match(line):
        return f"{where}: this line is for notebooks, and no Python; take it out: {line}"
    if _PYTHON_2.search(line):
        return f"{where}: this is Python 2. Convert it first, for example with 2to3 of Python 3.12."
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shown = f": {line}" if line else ""
    return f"{where}: this is no Python that can be read ({version}: {error.msg}){shown}"

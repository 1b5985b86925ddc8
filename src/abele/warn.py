"""Warnings and errors that point to the user's source line."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import sys
import warnings
from pathlib import Path
from types import FrameType

from abele.program.core import is_library

_OWN = Path(__file__).parent
# Files that call libraries inside of a user's line: context managers, and code that tracers write.
_BETWEEN = frozenset({contextlib.__file__, "<string>"})


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn from the innermost frame that belongs neither to torch nor to this project."""
    level, _ = _innermost()
    warnings.warn(message, category, stacklevel=level)


def user_line() -> str:
    """Return the active line of the user's code, as ``FILE:LINE: `CODE` ``."""
    _, frame = _innermost()
    file, line = frame.f_code.co_filename, frame.f_lineno
    return f"{file}:{line}: `{linecache.getline(file, line).strip()}`"


def called_by_user() -> bool:
    """Return whether the user's code calls what this project has replaced, and no library."""
    frame = inspect.currentframe()
    while frame is not None:
        file = frame.f_code.co_filename
        # Torch's overrides.py calls functions that are replaced.
        if not (Path(file).is_relative_to(_OWN) or file.endswith("overrides.py")):
            return not is_library(file)
        frame = frame.f_back
    return False


def _innermost() -> tuple[int, FrameType]:
    """Return the user's innermost frame, and its distance in frames from the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    frame = frame.f_back or frame
    level = 0
    while frame.f_back is not None and (
        is_library(file := frame.f_code.co_filename) or file in _BETWEEN or file[:7] == "<frozen"
    ):
        level, frame = level + 1, frame.f_back
    return level + 1, frame


def show(text: str) -> None:
    """Write a line to standard error if it is open."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        # One write: lines of several threads or processes do not mix.
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

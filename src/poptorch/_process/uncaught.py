"""Logging of uncaught exceptions, with the program's own frames."""

import os
import subprocess
import sys
import sysconfig
import traceback
from types import TracebackType

from abele import libraries
from abele.errors import AbeleError
from poptorch._error import Error
from poptorch._logging import HIDDEN_FRAMES, logger

# Raised on purpose, with a message that needs no frame of ours. Any other class may be a defect of
# this package, whose frames say where.
_DELIBERATE = (AbeleError, AssertionError, Error)

_PYTHON = f"{sysconfig.get_path('stdlib')}{os.sep}"


def log_uncaught(
    kind: type[BaseException], value: BaseException, trace: TracebackType | None
) -> None:
    """Write an exception that nobody caught to the log, at critical level.

    Args:
        kind: its class.
        value: the exception; the captured output of a failed subprocess is added.
        trace: where it was raised.
    """
    if issubclass(kind, KeyboardInterrupt) or not logger.isEnabledFor(50):
        sys.__excepthook__(kind, value, trace)
        return
    text = _traceback_text(value, trace)
    if isinstance(value, subprocess.CalledProcessError):
        text += _captured_output(value)
    logger.critical("%s", text)


def _traceback_text(value: BaseException, trace: TracebackType | None) -> str:
    """Format a traceback, above log level DEBUG without this package's last frames."""
    shown = traceback.TracebackException(type(value), value, trace)
    if logger.isEnabledFor(10):
        return "".join(shown.format()).rstrip()
    if shown.__cause__ is not None and _adds_nothing(value.__cause__, shown):
        shown.__cause__ = None
    hidden = isinstance(value, _DELIBERATE) and _drop_last_frames(shown.stack)
    text = "".join(shown.format()).rstrip()
    return f"{text}\n{HIDDEN_FRAMES}" if hidden and HIDDEN_FRAMES not in text else text


def _adds_nothing(cause: BaseException | None, shown: traceback.TracebackException) -> bool:
    """Return whether the engine's error adds neither a source line nor a word."""
    assert shown.__cause__ is not None
    return (
        isinstance(cause, AbeleError)
        and str(cause) in str(shown)
        and all(libraries.has_file(frame.filename) for frame in shown.__cause__.stack)
    )


def _drop_last_frames(stack: traceback.StackSummary) -> bool:
    """Drop the frames below the program's last one; keep all if the program has none."""
    kept = len(stack)
    while kept and _is_library(stack[kept - 1].filename):
        kept -= 1
    if not kept or kept == len(stack):
        return False
    del stack[kept:]
    return True


def _is_library(file: str) -> bool:
    """Return whether a file belongs to this project or to Python's library."""
    of_python = file.startswith(_PYTHON) and "site-packages" not in file
    return of_python or libraries.has_file(file)


def _captured_output(failed: subprocess.CalledProcessError) -> str:
    text = ""
    for name in ("stdout", "stderr"):
        captured = getattr(failed, name)
        if captured:
            shown = captured.decode(errors="replace") if isinstance(captured, bytes) else captured
            text += f"\n{name} of the subprocess:\n{shown.rstrip()}"
    return text

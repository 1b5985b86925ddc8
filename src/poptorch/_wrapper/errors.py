"""Translation of engine errors to PopTorch's classes, traceback filtering, and error logging."""

import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType

from abele import tracebacks
from abele.errors import (
    AbeleError,
    BatchError,
    CollectiveError,
    CompilerError,
    DataDependentError,
    IndexCheckError,
    TargetError,
    TrappedError,
)
from poptorch import _error, processes
from poptorch._error import Error, RecoverableError, error
from poptorch._logging import HIDDEN_FRAMES, logger

#: File for error messages of many lines, in the folder that ``options.logDir`` names.
ERROR_LOG = "poptorch_error.log"
_MOST_LINES = 80
_SHOWN = 10

# Raised on purpose, with a message that needs no frame of ours. Any other class may be a defect of
# this package, whose frames say where.
_DELIBERATE = (AbeleError, AssertionError, Error)


class Translated:
    """A reusable context manager that translates engine errors to the classes programs catch.

    A batch mistake is an AssertionError, a trapped operation a RecoverableError and every other
    engine error a poptorch.Error. Tracebacks are shortened to the user's frames. No generator: it
    would cost a microsecond at every call.

    Args:
        folder: for ``poptorch_error.log``, which gets errors of more than 80 lines.
    """

    def __init__(self, folder: str):
        self._folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(problem, Exception):
            return
        hidden = show_user_frames(problem)
        translated = self._translated(problem) if isinstance(problem, AbeleError) else problem
        if hidden and HIDDEN_FRAMES not in getattr(translated, "__notes__", ()):
            translated.add_note(HIDDEN_FRAMES)
        if translated is not problem:
            raise translated from problem

    def _translated(self, problem: AbeleError) -> Exception:
        """Convert an engine error to the class that PopTorch programs catch."""
        if isinstance(problem, CollectiveError):
            return processes.problem_between(problem, self._shortened)
        text = str(problem)
        if isinstance(problem, DataDependentError):
            text += " Code for the host alone goes under `if not poptorch.isRunningOnIpu()`."
        text = self._shortened(text)
        if isinstance(problem, BatchError):
            return AssertionError(text)
        if isinstance(problem, IndexCheckError):
            return _error.IndexCheckError(text)
        if isinstance(problem, TrappedError):
            action, layer = "IPU_RESET", "poplar_recoverable_runtime_error"
            return RecoverableError(text, action, layer, problem.line)
        if isinstance(problem, TargetError) and not isinstance(problem, CompilerError):
            return error(f"Failed to acquire a device: {text}")
        return error(text)

    def _shortened(self, text: str) -> str:
        return shortened(text, self._folder)


def shortened(text: str, folder: str) -> str:
    """Return an error message; one of more than 80 lines is shortened and written to ``folder``.

    The full text is returned if the file cannot be written: no error may hide another.
    """
    lines = text.splitlines()
    if len(lines) <= _MOST_LINES:
        return text
    path = Path(folder) / ERROR_LOG
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as problem:
        logger.warning("The error cannot be written to %s: %s", path, problem)
        return text
    return "\n".join([*lines[:_SHOWN], f"({len(lines)} lines; the whole error is in {path})"])


# -- frames ------------------------------------------------------------------------------------


def show_user_frames(raised: BaseException) -> bool:
    """Remove frames of libraries from an error's traceback; at log level DEBUG nothing changes.

    Returns:
        Whether frames were removed.
    """
    return not logger.isEnabledFor(10) and tracebacks.show_user_frames(raised, (AbeleError, Error))


# -- uncaught exceptions -----------------------------------------------------------------------


def log_uncaught(
    kind: type[BaseException], value: BaseException, trace: TracebackType | None
) -> None:
    """Log an uncaught exception at critical level, with the output of a failed subprocess."""
    if issubclass(kind, KeyboardInterrupt) or not logger.isEnabledFor(50):
        sys.__excepthook__(kind, value, trace)
        return
    text = _traceback_text(value)
    if isinstance(value, subprocess.CalledProcessError):
        text += _captured_output(value)
    logger.critical("%s", text)


def _traceback_text(value: BaseException) -> str:
    """Format a traceback without this package's last frames, unless the log level is DEBUG."""
    if logger.isEnabledFor(10):
        return "".join(traceback.format_exception(value)).rstrip()
    frames = tracebacks.frames_of(value)
    kept = len(frames)
    while kept and not tracebacks.is_users(frames[kept - 1].tb_frame):
        kept -= 1
    hidden = isinstance(value, _DELIBERATE) and 0 < kept < len(frames)
    trace = tracebacks.joined(frames[:kept]) if hidden else value.__traceback__
    shown = traceback.TracebackException(type(value), value, trace)
    if shown.__cause__ is not None and _adds_nothing(value.__cause__, str(value)):
        shown.__cause__ = None
    text = "".join(shown.format()).rstrip()
    return f"{text}\n{HIDDEN_FRAMES}" if hidden and HIDDEN_FRAMES not in text else text


def _adds_nothing(cause: BaseException | None, text: str) -> bool:
    """Return whether an error's cause adds neither text nor a source line of the user."""
    return (
        isinstance(cause, AbeleError)
        and str(cause) in text
        and not any(tracebacks.is_users(entry.tb_frame) for entry in tracebacks.frames_of(cause))
    )


def _captured_output(failed: subprocess.CalledProcessError) -> str:
    text = ""
    for name in ("stdout", "stderr"):
        captured = getattr(failed, name)
        if captured:
            shown = captured.decode(errors="replace") if isinstance(captured, bytes) else captured
            text += f"\n{name} of the subprocess:\n{shown.rstrip()}"
    return text

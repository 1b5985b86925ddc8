"""The engine's errors under the classes that PopTorch programs catch."""

from pathlib import Path
from types import TracebackType

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
from poptorch._error import RecoverableError, error
from poptorch._logging import logger
from poptorch._wrapper.user_frames import note_hidden_frames, show_user_frames

#: Where errors go that would fill the screen, in the folder that ``options.logDir`` names.
ERROR_LOG = "poptorch_error.log"
_MOST_LINES = 80
_SHOWN = 10


class Translated:
    """Raises what the engine raises inside as what programs catch.

    A batch mistake is an AssertionError, a trapped operation a RecoverableError and every other
    engine error a poptorch.Error. Tracebacks are shortened to the user's frames. A context manager
    to be kept and entered again; no generator, which would cost a microsecond at every call.

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
        if hidden:
            note_hidden_frames(translated)
        if translated is not problem:
            raise translated from problem

    def _translated(self, problem: AbeleError) -> Exception:
        """Convert an error of the engine to the class that programs catch."""
        if isinstance(problem, CollectiveError):
            return processes.problem_between(problem, self._shortened)
        text = self._shortened(_with_advice(problem))
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


def _with_advice(problem: AbeleError) -> str:
    """Return the engine's message, with the remedy that this interface has."""
    if isinstance(problem, DataDependentError):
        return f"{problem} Code for the host alone goes under `if not poptorch.isRunningOnIpu()`."
    return str(problem)


def shortened(text: str, folder: str) -> str:
    """Return a message, shortened if long, with a pointer to the rest.

    Args:
        text: the message; more than 80 lines are written to ``poptorch_error.log``.
        folder: the folder of that file; made if it does not exist.

    Returns:
        The whole text also where the file cannot be written: no error may hide another.
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

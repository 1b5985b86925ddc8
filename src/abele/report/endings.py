"""Ends of runs: normal exit, exit status, uncaught error, or signal.

Hooks and signal handlers that were set before stay in place. A process that is killed records
nothing; its journal lacks an end, which tells a reader.

Python notifies nobody of a ``SystemExit`` that ends it. But it frees the exception when no frame
of the program is left, and then calls what is registered with ``atexit``. An exception that the
program catches is freed while frames run. The status of one that is raised without ``sys.exit``,
or kept in a variable, stays unknown.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn, Protocol

from abele import libraries

_ending: list[Any] = []


def watch_status() -> None:
    """Record the status that the program passes to ``sys.exit``."""
    sys.exit = functools.partial(_exit, sys.exit)


def status_words() -> str:
    """Return ``with status 3`` and the message, if any; empty if the status is 0 or unknown."""
    code = _ending[0] if _ending else None  # others that it came of are freed after it
    if isinstance(code, int):
        status = code & 0xFF  # as the system cuts it
        return f"with status {status}" if status else ""
    return "" if code is None else f"with status 1: {code}"


def _exit(before: Callable[[Any], NoReturn], status: Any = None, /) -> NoReturn:
    try:
        before(status)
    except SystemExit as ended:
        if threading.current_thread() is threading.main_thread():  # others end only themselves
            vars(ended)["_abele"] = _Freed(ended.code)
        raise


class _Freed:
    """An object that is freed together with the exception that has it."""

    def __init__(self, code: Any):
        self._code = code

    def __del__(self) -> None:
        this = inspect.currentframe()
        if this is not None and this.f_back is None:
            _ending.append(self._code)


class Ending(Protocol):
    """Receiver of the end of the process."""

    def failed(self, where: str, error: BaseException) -> None:
        """Record an error that no code of the program caught."""
        ...

    def ended(self, how: str) -> None:
        """Record the end; called again at exit."""
        ...


_watched: list[Ending] = []
_pid = 0


def text_of(error: BaseException) -> str:
    """Return the text of an error, or a sentence if the text is empty."""
    if text := str(error):
        return text
    if isinstance(error, KeyboardInterrupt):
        return "The program was interrupted: by Ctrl-C, or by whoever sent it SIGINT."
    return f"A {type(error).__name__} was raised without a message."


def with_causes(error: BaseException) -> str:
    """Return the texts of an error and its causes, each once, and each type by name."""
    text, cause = text_of(error), error.__cause__
    seen = {id(error)}
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        said = text_of(cause)
        more = "" if said in text else f": {said}"
        text += f"\nCaused by {type(cause).__name__}{more}"
        cause = cause.__cause__
    return text


def watch(run: Ending) -> None:
    """Notify ``run`` of the end of the process."""
    global _pid
    _pid = os.getpid()
    _watched.append(run)
    _begin()


def leave(run: Ending) -> None:
    """Stop recording uncaught errors and the end of the process for a run."""
    if run in _watched:
        _watched.remove(run)


@functools.cache
def _begin() -> None:
    atexit.register(_at_exit)
    watch_status()
    sys.excepthook = functools.partial(_uncaught, sys.excepthook)
    if threading.current_thread() is threading.main_thread():
        _watch_signal(signal.SIGTERM)


def _watch_signal(number: signal.Signals) -> None:
    """Handle a signal that would end the process; a handler of the program stays."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        return
    prints_stack = faulthandler.unregister(number)
    signal.signal(number, _terminated)
    if prints_stack:  # as before, and then what was set here
        with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
            faulthandler.register(number, chain=True)


def _here() -> list[Ending]:
    """Return the runs of this process; empty in a forked child."""
    return list(_watched) if os.getpid() == _pid else []


def _at_exit() -> None:
    status = status_words()
    for each in _here():
        each.ended(f"ended {status}" if status else "finished")


def _uncaught(
    before: object,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    for each in _here():
        each.failed(_line(trace), error)
        each.ended("interrupted" if issubclass(kind, KeyboardInterrupt) else "failed")
    if callable(before):
        before(kind, error, trace)


def _line(trace: TracebackType | None) -> str:
    """Return the innermost line of the program or of its data loading."""
    if trace is None:
        return "the program"
    frames = [trace]
    while (inner := frames[-1].tb_next) is not None:
        frames.append(inner)
    of_program = [f for f in frames if not libraries.has_file(f.tb_frame.f_code.co_filename)]
    innermost = (of_program or frames)[-1]
    code = innermost.tb_frame.f_code
    return f"{os.path.basename(code.co_filename)}:{innermost.tb_lineno} in {code.co_name}"


def _terminated(number: int, frame: FrameType | None) -> None:
    """Record the signal, then let it end the process."""
    for each in _here():
        each.ended(f"ended by {signal.Signals(number).name}")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)

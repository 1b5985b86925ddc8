"""Records how a process ends: normal exit, exit status, uncaught error, or signal.

Hooks and signal handlers that were set before stay in place. A process that is killed records
nothing, so its journal has no end.

Python has no hook for a ``SystemExit`` that ends the process. But it frees the exception when no
frame of the program is left, before ``atexit`` handlers run. An exception that the program catches
is freed while frames exist. The status is unknown if the exception is raised without ``sys.exit``
or stored in a variable.
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
    """Patch ``sys.exit`` to record the status that the program passes to it."""
    sys.exit = functools.partial(_exit, sys.exit)


def status_words() -> str:
    """Format the exit status as ``with status 3``; empty if it is 0 or unknown."""
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
    """An object that records the exit status when the ``SystemExit`` that owns it is freed."""

    def __init__(self, code: Any):
        self._code = code

    def __del__(self) -> None:
        this = inspect.currentframe()
        if this is not None and this.f_back is None:
            _ending.append(self._code)


class Ending(Protocol):
    """Receiver of uncaught errors and of the end of the process."""

    def failed(self, where: str, error: BaseException) -> None:
        """Record an error that the program did not catch."""
        ...

    def ended(self, how: str) -> None:
        """Record the end of the process; called again at exit."""
        ...


_watched: list[Ending] = []
_pid = 0


def text_of(error: BaseException) -> str:
    """Return the message of an error, or a sentence if the message is empty."""
    if text := str(error):
        return text
    if isinstance(error, KeyboardInterrupt):
        return "The program was interrupted: by Ctrl-C, or by whoever sent it SIGINT."
    return f"A {type(error).__name__} was raised without a message."


def with_causes(error: BaseException) -> str:
    """Return the text of an error, followed by the types and texts of its causes."""
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
    """Register a receiver of uncaught errors and of the end of the process."""
    global _pid
    _pid = os.getpid()
    _watched.append(run)
    _begin()


def leave(run: Ending) -> None:
    """Unregister a receiver of uncaught errors and of the end of the process."""
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
    """Install a handler for a signal that ends the process, unless the program has one."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        return
    # Windows prints no stacks at signals.
    prints_stack = hasattr(faulthandler, "unregister") and faulthandler.unregister(number)
    signal.signal(number, _terminated)
    if prints_stack:  # as before, and then what was set here
        with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
            faulthandler.register(number, chain=True)


def _here() -> list[Ending]:
    """Return the registered receivers of this process; empty in a forked child."""
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
    """Return the innermost line of a traceback outside of libraries, ``FILE:LINE in FUNCTION``."""
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
    """Record a signal as the end of the process, then let the signal end it."""
    for each in _here():
        each.ended(f"ended by {signal.Signals(number).name}")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)

"""Handling of Ctrl-C and SIGTERM: unfinished files are deleted, and loops end in order.

Anywhere the signal becomes an exception, so that no half-written file stays. Inside ``Stop``, once
a first step is made, the first one lets the loop finish its step; the second one is the exception,
a third ends the process.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from cosmictagger.recording import warn_once

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """An exception raised by a stop signal.

    Attributes:
        signal: its number.
    """

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


class _Handlers:
    """Context manager in which SIGINT and SIGTERM stop a run in order; in the main thread only."""

    def __init__(self, on_signal: Callable[[int, FrameType | None], None]):
        self._on_signal = on_signal
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def interruptible() -> _Handlers:
    """Return a context in which each stop signal raises ``Stopped``."""
    return _Handlers(_raise)


def _raise(number: int, frame: FrameType | None) -> None:
    del frame
    raise Stopped(number)


class Stop(_Handlers):
    """Context manager that records the first stop signal, for the loop inside to end in order.

    Attributes:
        signal: the number of the signal that came, or None.
        is_underway: set after the first step. Before it there is nothing to save, so that a signal
            ends the loop of a process that is ``alone`` without waiting for a compiler.
    """

    def __init__(self, alone: bool = False):
        super().__init__(self._keep)
        self.signal: int | None = None
        self.is_underway = not alone
        self._again = False

    def _keep(self, number: int, frame: FrameType | None) -> None:
        if self._again:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self.signal is not None or not self.is_underway:
            self._again = True
            _raise(number, frame)
        self.signal = number
        name = signal.Signals(number).name
        warn_once(f"{name}: ending in order after this step. Again: at once.")

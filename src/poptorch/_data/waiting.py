"""Measurement of the time that training loops wait for batches, logged at exit.

Reports of runs say the same of the loop around their wrapper's calls (``LoopAround``).
"""

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from abele.report.record import Loop, Waits
from poptorch._logging import logger


class Waiting:
    """Measured times of the loops over one data loader: total, and waiting for batches.

    A time runs from one batch to the next: the program's work on a batch, then waiting for
    another. The first of each epoch does not count, because a first call compiles.

    Args:
        steps: device steps per batch.
        show: whether the line is written where compiling is shown, else it goes to the log.

    Attributes:
        why_single: why items are fetched one by one; None if they are not.
    """

    def __init__(self, steps: int, *, show: bool):
        self._steps, self._show = steps, show
        self.why_single: str | None = None
        self._process, self._beginning = os.getpid(), _beginning
        self._last: int | None = None
        self._skip = False
        self.batches = self.loop_ns = self.waiting_ns = 0

    def begin_epoch(self) -> None:
        """Exclude the next batch, an epoch's first, from the measured loop times."""
        self._last, self._skip = None, True

    def note(self, asked_ns: int, given_ns: int) -> None:
        """Record when a batch was requested and received, in ns of ``perf_counter_ns``."""
        _here.waits.ns += given_ns - asked_ns
        _here.latest = self
        if self._beginning != _beginning:
            self._beginning, self._last = _beginning, None
            self.batches = self.loop_ns = self.waiting_ns = 0
        if self._last is not None and not self._skip:
            self.batches += 1
            self.loop_ns += given_ns - self._last
            self.waiting_ns += given_ns - asked_ns
            _keep_longest(self)
        self._skip = self._last is None
        self._last = given_ns

    def loop(self) -> Loop | None:
        """Return the measured loop and waiting times; None if no batch has been counted."""
        if self._beginning != _beginning or not self.batches:
            return None
        return Loop(
            batches=self.batches,
            steps=self._steps,
            seconds=self.loop_ns / 1e9,
            waiting=self.waiting_ns / 1e9,
            why_single=self.why_single or "",
        )

    def say(self) -> None:
        """Log how long a loop waited for batches, if this process ran a loop."""
        loop = self.loop()
        text = None if loop is None else loop.sentence()
        if text is None or self._process != os.getpid():
            return
        if self._show:
            with contextlib.suppress(
                AttributeError, OSError, ValueError
            ):  # closed, or there is none
                tqdm.write(f"abele: {text}", file=sys.stderr)
        else:
            logger.info(text)


class Timed:
    """An iterator that reports the waiting time of each batch; ``note`` keeps the loader alive."""

    def __init__(self, batches: Any, waiting: Waiting, note: Callable[[], None]):
        self._batches, self._waiting, self._note = batches, waiting, note
        waiting.begin_epoch()

    def __iter__(self) -> "Timed":
        return self

    def __next__(self) -> Any:
        began_ns = time.perf_counter_ns()
        batch = next(self._batches)
        self._waiting.note(began_ns, time.perf_counter_ns())
        self._note()
        return batch

    def __len__(self) -> int:
        return len(self._batches)


class _Here(threading.local):
    """The time a thread has waited for batches, and the times of its latest loader."""

    def __init__(self) -> None:
        self.waits = Waits()
        self.latest: Waiting | None = None


class LoopAround:
    """Finds the data loader whose loop a wrapped model is called in.

    A call returns this thread's waiting time for batches, an object that is updated later.
    """

    def __init__(self) -> None:
        self._waiting: Waiting | None = None

    def __call__(self) -> Waits:
        latest, longest = _here.latest, self._waiting
        if latest is not longest and (
            latest is not None and (longest is None or latest.loop_ns > longest.loop_ns)
        ):
            self._waiting = latest
        return _here.waits

    def loop(self) -> Loop | None:
        """Return the times of the data loader with the longest loop; None without a loader."""
        return None if self._waiting is None else self._waiting.loop()


_here = _Here()
_beginning = 0
_longest: Waiting | None = None


def begin_again() -> None:
    """Reset all measured waiting times, because other programs run from now on."""
    global _beginning, _longest
    _beginning, _longest = _beginning + 1, None


def _keep_longest(waiting: Waiting) -> None:
    global _longest
    if _longest is None or waiting.loop_ns > _longest.loop_ns:
        _longest = waiting


@atexit.register
def _say() -> None:
    if _longest is not None:
        _longest.say()

"""How long a program waits for its batches, said in one line when the process ends."""

import atexit
import os
import sys
import time
from typing import Any

from tqdm import tqdm

from poptorch._logging import logger

_LEAST_BATCHES, _LEAST_S = 100, 1.0  # a shorter loop says nothing of a rate


class Waiting:
    """The times of the loops over one loader.

    What counts is the time from one batch to the next: the program's work on a batch, then waiting
    for another. The first such time of each epoch does not count, because a first call compiles.

    Args:
        steps: of the device, per batch.
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
        """The next batch is the first of an epoch."""
        self._last, self._skip = None, True

    def note(self, asked_ns: int, given_ns: int) -> None:
        """Count a batch.

        Args:
            asked_ns: when it was asked for, on the clock of ``time.perf_counter_ns``.
            given_ns: when it was there.
        """
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

    def sentence(self) -> str | None:
        """What bounds the loop and what free input would give; None after too short a loop."""
        working_ns = self.loop_ns - self.waiting_ns
        if self.batches < _LEAST_BATCHES or self.loop_ns < 1e9 * _LEAST_S or working_ns <= 0:
            return None
        share, steps = self.waiting_ns / self.loop_ns, self.batches * self._steps
        rate, free = (1e9 * steps / ns for ns in (self.loop_ns, working_ns))
        bound = "input-bound" if share > 0.5 else "compute-bound"
        text = (
            f"{bound}: {rate:,.0f} steps/s, of which waiting for batches took {share:.0%}; with "
            f"free input {free:,.0f} steps/s"
        )
        if bound == "input-bound" and self.why_single is not None:
            text += f" (items were fetched one by one: {self.why_single})"
        return text

    def say(self) -> None:
        """Write the line, if there is one and this process has looped."""
        text = self.sentence()
        if text is None or self._process != os.getpid():
            return
        if self._show:
            tqdm.write(f"abele: {text}", file=sys.stderr)
        else:
            logger.info(text)


class Timed:
    """An iterator that tells a ``Waiting`` of its batches.

    Args:
        batches: the iterator.
        waiting: told.
    """

    def __init__(self, batches: Any, waiting: Waiting):
        self._batches, self._waiting = batches, waiting
        waiting.begin_epoch()

    def __iter__(self) -> "Timed":
        return self

    def __next__(self) -> Any:
        asked = time.perf_counter_ns()
        batch = next(self._batches)
        self._waiting.note(asked, time.perf_counter_ns())
        return batch

    def __len__(self) -> int:
        return len(self._batches)


_beginning = 0
_longest: Waiting | None = None


def begin_again() -> None:
    """Forget all times: other programs run from now on, and these may be slower or faster."""
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

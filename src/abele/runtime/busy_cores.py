"""Keeps steps fast on cores that other processes use too: waiting threads sleep there.

Threads of GNU's OpenMP library, torch's and those of compiled programs, spin for milliseconds at
each barrier before they sleep. Beside another process they spin on the core that the thread they
wait for needs, and a step takes a hundred times as long. The library spins for microseconds
alone while a process has more of its threads than cores, so busy cores get threads that sleep.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from abele import processor

_INTERVAL_NS = 500_000_000
# Seconds that threads waited for a core in a second, from which on they sleep and spin again.
_BUSY, _IDLE = 0.15, 0.05
_CORES = processor.cores()  # as OpenMP counts them, when it is loaded
_TASKS = Path("/proc/self/task")
_NEVER = 1 << 62


class BusyCores:
    """A watch on how long this process waits for cores, and sleeping threads while it does.

    Attributes:
        due_ns: when ``look`` should be called next, on the clock of ``time.perf_counter_ns``.
    """

    def __init__(self) -> None:
        self.due_ns = 0
        self._before: tuple[int, int] | None = None
        self._release: Callable[[], None] | None = None
        self._looking = threading.Lock()

    def look(self, now_ns: int) -> None:
        """Let threads spin or sleep, by how long they waited for cores since the last look."""
        self.due_ns = now_ns + _INTERVAL_NS
        if self._looking.acquire(blocking=False):  # else another thread looks
            try:
                self._look(now_ns)
            finally:
                self._looking.release()

    def _look(self, now_ns: int) -> None:
        waited = _waited_ns()
        if waited is None:  # not Linux: OpenMP is another one there, too
            self.due_ns = _NEVER
            return
        before, self._before = self._before, (now_ns, waited)
        if before is None:
            return
        share = (waited - before[1]) / (now_ns - before[0])
        if self._release is None and share > _BUSY and torch.get_num_threads() > 1:
            self._release = _sleeping_threads()
            self.due_ns = _NEVER if self._release is None else self.due_ns
        elif self._release is not None and share < _IDLE:
            self._release()
            self._release = None


def _waited_ns() -> int | None:
    """Return how long threads of this process had work and no core; None if it is unknown."""
    waited = None
    with contextlib.suppress(OSError):
        for task in _TASKS.iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it may have ended
                own = int((task / "schedstat").read_text(encoding="ascii").split()[1])
                waited = (waited or 0) + own
    return waited


def _sleeping_threads() -> Callable[[], None] | None:
    """Start more threads of OpenMP than there are cores; return what ends them.

    They belong to a thread of Python that sleeps. None if this process has no GNU OpenMP.
    """
    try:
        library = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD)
        does_nothing = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p)
    except (OSError, AttributeError):
        return None
    ended = threading.Event()

    def hold() -> None:
        library.GOMP_parallel(does_nothing, None, ctypes.c_uint(_CORES + 1), ctypes.c_uint(0))
        ended.wait()

    threading.Thread(target=hold, name="abele-busy-cores", daemon=True).start()
    return ended.set


#: The watch of this process.
cores = BusyCores()

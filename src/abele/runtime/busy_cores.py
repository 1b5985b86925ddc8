"""Keeps steps fast on cores that other processes use too: fewer threads work, waiting ones sleep.

There, a thread that meets others waits until the slowest has had its turns on a core. So compiled
code is limited to as many threads as find a core, in a container to its share of them; a thread
computes the parts of several, which gives the same bits. Operators of torch divide their work by
the number of threads, and keep these. GNU's OpenMP library lets them spin for milliseconds at each
barrier, for microseconds if a process has more of them than cores: busy cores get some that sleep.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import operator
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from abele import processor
from abele.kernels import threads

_INTERVAL_NS = 500_000_000
# Seconds that threads waited for a core in a second, from which on cores are busy.
_BUSY = 0.15
# Seconds that cores were idle in a second of this process's work, from which on another thread
# finds one. Other processes may use all cores between two calls of this one, and none meanwhile.
_IDLE = 0.7
_CORES = processor.cores()  # as OpenMP counts them, when it is loaded
_TASKS = Path("/proc/self/task")
_STATISTICS = Path("/proc/stat")
_NEVER = 1 << 62
_SHORT = 1e-3  # seconds that count as work where there was none


class BusyCores:
    """A watch on how long this process waits for cores, and fewer threads while it does.

    Attributes:
        due_ns: when ``look`` should be called next, on the clock of ``time.perf_counter_ns``.
    """

    def __init__(self) -> None:
        self.due_ns = 0
        self._before: tuple[float, ...] | None = None
        self._limit = threads.ALL
        self._release: Callable[[], None] | None = None
        self._looking = threading.Lock()

    def look(self, now_ns: int) -> None:
        """Change how many threads work, by how long they waited for cores since the last look."""
        self.due_ns = now_ns + _INTERVAL_NS
        if self._looking.acquire(blocking=False):  # else another thread looks
            try:
                self._look(now_ns)
            finally:
                self._looking.release()

    def _look(self, now_ns: int) -> None:
        waited, idle = _waited_s(), _idle_s()
        if waited is None or idle is None:  # not Linux: OpenMP is another one there, too
            self.due_ns = _NEVER
            return
        before, self._before = self._before, (now_ns / 1e9, waited, idle, time.process_time())
        if before is not None:
            self._follow(*map(operator.sub, self._before, before))

    def _follow(self, seconds: float, waited: float, idle: float, worked: float) -> None:
        """Change how many threads work, by seconds since the last look.

        These are all that passed, and those that threads waited for a core, that cores were idle,
        and that threads had a core; each counts for itself.
        """
        all_threads, quota = torch.get_num_threads(), processor.quota()
        most = all_threads if quota is None else max(1, min(all_threads, math.ceil(quota)))
        now = min(self._limit, most)
        waiting, idle_cores = waited / seconds, idle / min(seconds, worked / now + _SHORT)
        if waiting > _BUSY:
            now = max(1, now - max(1, round(waiting)))
        elif idle_cores > _IDLE:
            now = min(most, now + round(idle_cores))
        self._limit = now if now < all_threads else threads.ALL
        threads.limit(self._limit)
        if now < all_threads and self._release is None:
            self._release = _sleeping_threads()
        elif now == all_threads and self._release is not None:
            self._release()
            self._release = None


def _waited_s() -> float | None:
    """Return the seconds that threads of this process had work and no core; None if unknown."""
    waited = None
    with contextlib.suppress(OSError):
        for task in _TASKS.iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it may have ended
                own = int((task / "schedstat").read_text(encoding="ascii").split()[1])
                waited = (waited or 0) + own
    return None if waited is None else waited / 1e9


def _idle_s() -> float | None:
    """Return the seconds that the cores of this process were idle; None if unknown."""
    try:
        lines = _STATISTICS.read_text(encoding="ascii").splitlines()
        cores = {f"cpu{each}" for each in os.sched_getaffinity(0)}
        times = [line.split() for line in lines]
        idle = [int(each[4]) + int(each[5]) for each in times if each and each[0] in cores]
    except (OSError, AttributeError, ValueError, IndexError):
        return None
    return sum(idle) / os.sysconf("SC_CLK_TCK") if idle else None


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

"""Keeps steps fast on cores that other processes use, too: waiting threads sleep there.

Threads of GNU's OpenMP library, torch's and those of compiled programs, spin for milliseconds at
each barrier before they sleep. Beside another process they spin on the core that the thread they
wait for needs, and a step takes a hundred times as long. The library spins for microseconds
alone while a process has more of its threads than cores, so busy cores get threads that sleep.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from abele import processor

_INTERVAL_NS = 500_000_000  # the system counts in hundredths of a second
_SLACK = 0.2  # cores that may be used twice
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_CORES = processor.cores()  # as OpenMP counts them, when it is loaded
_COUNTS = Path("/proc/stat")


class BusyCores:
    """A watch of the cores that this process may use, and the sleeping threads while they are busy.

    Attributes:
        due_ns: when ``look`` should be called next, on the clock of ``time.perf_counter_ns``.
    """

    def __init__(self) -> None:
        self.due_ns = 0
        self._before: tuple[float, float, float] | None = None
        self._release: Callable[[], None] | None = None

    @property
    def sleeps(self) -> bool:
        """True while waiting threads sleep."""
        return self._release is not None

    def look(self, now_ns: int) -> None:
        """Let threads spin or sleep, by what other processes used since the last look."""
        self.due_ns = now_ns + _INTERVAL_NS
        try:
            cores, used = _used()
        except (OSError, ValueError):  # not Linux: OpenMP is another one there, too
            self.due_ns = 1 << 62
            return
        now = time.monotonic(), used, time.process_time()
        before, self._before = self._before, now
        if before is None:
            return
        seconds, total, own = (new - old for new, old in zip(now, before, strict=True))
        others = (total - own) / seconds
        threads = torch.get_num_threads()
        busy = threads > 1 and others + min(threads, cores) > cores + _SLACK
        if busy and self._release is None:
            self._release = _sleeping_threads()
            if self._release is None:
                self.due_ns = 1 << 62
        elif not busy and self._release is not None:
            self._release()
            self._release = None


def _used() -> tuple[int, float]:
    """Return the number of cores of this process, and the seconds that they have worked.

    Raises:
        OSError: the system does not count them, or ValueError.
    """
    cores = {f"cpu{each}" for each in os.sched_getaffinity(0)} if _COUNTS.is_file() else set[str]()
    ticks = found = 0
    for line in _COUNTS.read_text(encoding="ascii").splitlines():
        name, *counts = line.split()
        if not name.startswith("cpu"):
            break
        if name in cores:
            user, nice, system, _, _, irq, soft = map(int, counts[:7])
            ticks += user + nice + system + irq + soft
            found += 1
    return found, ticks / _TICKS


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

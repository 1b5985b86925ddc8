"""How far apart are two cores: the time in which one sees what the other has written.

    python benchmarks/core_distance.py

Cores that share a cache of the third level take 20 to 60 ns, those of different ones 100 to 200,
and what one has written the other reads at a third of the rate. Virtual machines are moved from one
to the other while they run, so records of two threads say which it was.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# Short trials, of which some find both cores without threads that spin.
_TURNS, _TRIALS = 1000, 16
_SOURCE = """
#include <atomic>
#include <chrono>
#include <thread>
#include <pthread.h>
static std::atomic<int> turn, ready;
static void play(int core, int own, int turns) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
  ++ready;
  for (int i = 0; i < turns; ++i) {
    while (turn.load(std::memory_order_acquire) != own) {}
    turn.store(1 - own, std::memory_order_release);
  }
}
extern "C" double core_distance(int first, int second, int turns) {
  turn = 2, ready = 0;
  std::thread one(play, first, 0, turns), other(play, second, 1, turns);
  using Clock = std::chrono::steady_clock;
  while (ready.load() < 2) {}
  const auto began = Clock::now();
  turn = 0;
  one.join(), other.join();
  return std::chrono::duration<double, std::nano>(Clock::now() - began).count() / turns / 2;
}
"""


@functools.cache
def _function() -> Callable[[int, int, int], float] | None:
    """Compile and load the measurement; None where threads cannot be bound or nothing compiles."""
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "distance.cpp"), Path(folder, "distance.so")
        source.write_text(_SOURCE)
        command = ["g++", "-O2", "-shared", "-fPIC", "-pthread", str(source), "-o", str(library)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        function = ctypes.CDLL(str(library)).core_distance
    function.argtypes, function.restype = [ctypes.c_int] * 3, ctypes.c_double
    return function


def nanoseconds() -> float | None:
    """Return how long the second usable core takes to see what the first writes, now, in ns.

    None where it cannot be measured: another system than Linux, one core, no ``g++``.
    """
    function = _function()
    if function is None:
        return None
    first, second, *_ = sorted(os.sched_getaffinity(0))
    return round(min(function(first, second, _TURNS) for _ in range(_TRIALS)), 1)


if __name__ == "__main__":
    print(nanoseconds(), "ns from one core to the other")

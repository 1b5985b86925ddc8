"""One way of one row in a process of its own, so that its memory and its failures are its own.

Each line of standard input is a command, each line of standard output its answer in JSON:
``start`` compiles and takes first steps, ``settle`` waits until compiled programs run, ``calibrate
SECONDS`` finds a window's steps, ``window`` times one, ``end`` tells the memory. What fails is
answered with ``failed``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks import harness

from . import ways
from .rows import ABELE, BACKEND, DECORATOR, ROWS, WAYS, Row

COMPARED_STEPS = 3
SHORT_STEP_S = 0.1


def main() -> int:
    """Answer commands until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--row", choices=ROWS, required=True)
    parser.add_argument("--way", choices=(*WAYS, BACKEND, DECORATOR), required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    _limit(options.threads)
    if options.device != "cpu":
        ways.plain_float32()
    # What libraries print must not mix with the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    server = Server(ROWS[options.row], options.way, options.device)
    for line in sys.stdin:
        print(json.dumps(server.answer(line.split())), file=answers, flush=True)
    return 0


def _limit(threads: int) -> None:
    """Give every library as many threads as asked for; where they count cores, fewer cores."""
    torch.set_num_threads(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0), key=_place_in_core)[:threads])


def _place_in_core(thread: int) -> tuple[int, int]:
    """Return the order in which hardware threads are used: one of each core comes first."""
    path = Path(f"/sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list")
    with contextlib.suppress(OSError, ValueError):
        firsts = re.findall(r"(\d+)(?:-(\d+))?", path.read_text())
        siblings = [n for a, b in firsts for n in range(int(a), int(b or a) + 1)]
        return siblings.index(thread), thread
    return 0, thread


class Server:
    """Takes steps of one way.

    Args:
        row: what to measure.
        way: how.
        device: where.
    """

    def __init__(self, row: Row, way: str, device: str = "cpu"):
        self._row, self._way, self._device = row, way, device
        self._step: ways.Step | None = None
        self._count, self._warm = 1, 0
        self._peak_of_start = 0.0
        self._sessions, self._noted = list[Any](), contextlib.ExitStack()

    def answer(self, command: list[str]) -> dict[str, Any]:
        """Return the answer to one command."""
        name, *values = command
        try:
            return getattr(self, f"_{name}")(*map(float, values))
        except ways.NotWritten as error:
            return {"failed": str(error)}
        except Exception as error:  # noqa: BLE001 - a peer that fails is a result
            first = next(iter(str(error).strip().splitlines()), "")
            return {"failed": f"{type(error).__name__}: {first[:200]}"}

    def _start(self) -> dict[str, Any]:
        imported_mib = harness.peak_memory_mib()
        ways.load(self._row, self._way)
        if self._way in (ABELE, DECORATOR):
            from abele.runtime import session  # the other ways do not take its memory

            self._noted.enter_context(session.of_new_sessions(self._sessions.append))
        began = time.perf_counter()
        step = ways.prepare(self._row, self._way, self._device)
        values = [ways.number(step())]
        first_s = time.perf_counter() - began
        process_s = time.time() - float(os.environ[harness.STARTED])
        first_peak_mib = harness.peak_memory_mib()
        values += [ways.number(step()) for _ in range(COMPARED_STEPS - 1)]
        self._step = ways.looped(self._row, self._way, step) if self._row.loader else step
        return {
            "first_step_s": round(first_s, 3),
            "process_s": round(process_s, 3),
            "import_mib": round(imported_mib, 1),
            "first_peak_mib": round(first_peak_mib, 1),
            "values": [float(f"{value:.7g}") for value in values],
        }

    def _settle(self) -> dict[str, Any]:
        """Wait for compiled programs, and take the steps from which on they run."""
        for each in self._sessions:
            each.lasting_executable()
        self._take(2)
        return {}

    def _calibrate(self, window_s: float) -> dict[str, Any]:
        assert self._step is not None
        self._peak_of_start = harness.peak_memory_mib()
        if self._device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        with contextlib.suppress(OSError):  # the system counts the peak from now on, where it can
            Path("/proc/self/clear_refs").write_text("5")
        self._count = harness.calibrate(self._step, window_s, warm=2)
        # The other ways' windows have emptied the caches; a long step fills them by itself.
        self._warm = max(1, self._count // 10) if window_s / self._count < SHORT_STEP_S else 0
        return {"steps": self._count}

    def _window(self) -> dict[str, Any]:
        self._take(self._warm)
        started, cpu = time.perf_counter(), time.process_time()
        self._take(self._count)
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
        return {"step_per_s": self._count / seconds, "cpu_s": cpu_s / self._count}

    def _take(self, count: int) -> None:
        assert self._step is not None
        result = None
        for _ in range(count):
            result = self._step()
        ways.wait(result, self._device)

    def _end(self) -> dict[str, Any]:
        peak = harness.peak_memory_mib()
        ends = {
            "peak_mib": round(max(self._peak_of_start, peak), 1),
            "step_peak_mib": round(peak, 1),
        }
        if self._device != "cpu":  # what counts is the GPU's; the process's beside it
            ends["host_step_peak_mib"] = ends["step_peak_mib"]
            ends["step_peak_mib"] = round(ways.gpu_peak_bytes(self._way) / 2**20, 1)
        return ends


if __name__ == "__main__":
    sys.exit(main())

"""Lets the ways of a row take turns, each in its process, and keeps what they answer."""

from __future__ import annotations

import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from benchmarks import harness
from tqdm import tqdm

from . import ROOT
from .rows import ABELE, BACKEND, COMPILE, DECORATOR, EAGER, JAX, Row

CACHED = (ABELE, BACKEND, COMPILE, DECORATOR)  # ways that keep compiled code between processes
_STARTS = 3  # as users start, whose median counts: memory that has been reclaimed can cost seconds


class PeerFailed(Exception):
    """A way cannot be measured; the message says why."""


class Peer:
    """The process of one way of one row.

    Args:
        row: what to measure.
        way: how.
        threads: threads of every library in it.
        folder: where it keeps compiled code and its log.
        bar: is redrawn while an answer is awaited.
        device: where it computes.
        user: names a folder for its executables; then it starts as it does for users, and does not
            wait for compiled code, of which windows are.
        root: the checkout whose code runs.
    """

    def __init__(
        self,
        row: Row,
        way: str,
        threads: int,
        folder: Path,
        bar: tqdm,
        device: str = "cpu",
        *,
        user: str = "",
        root: Path = ROOT,
    ):
        self._log, self._bar = folder / f"{row.name}-{way}.log", bar
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.table.serving"]
        command += ["--row", row.name, "--way", way, "--threads", str(threads)]
        command += ["--device", device]
        environment = {
            **os.environ,
            harness.STARTED: str(time.time()),
            "OMP_NUM_THREADS": str(threads),
            "JAX_PLATFORMS": device,
            "ABELE_START": "" if user else "wait",
            "POPTORCH_CACHE_DIR": str(folder / (user or "executables")),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / f"inductor-{way}"),
        }
        if device != "cpu":
            environment["ABELE_TARGET"] = device  # fails instead of running elsewhere
            environment["JAX_DEFAULT_MATMUL_PRECISION"] = "float32"  # see ``ways.plain_float32``
            environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # else it has all memory
        with open(self._log, "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command,
                cwd=root,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def ask(self, command: str, limit_s: float) -> dict[str, Any]:
        """Return the answer to a command.

        Raises:
            PeerFailed: it failed, the process ended, or there was no answer in time.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{command}\n")
            process.stdin.flush()
        began = time.perf_counter()
        while not select.select([process.stdout], [], [], 1.0)[0]:
            self._bar.refresh()
            if time.perf_counter() - began > limit_s:
                raise PeerFailed(f"no answer to {command.split()[0]} within {limit_s:.0f} s")
        line = process.stdout.readline()
        if not line:
            raise PeerFailed(self._last_words(command))
        answer = json.loads(line)
        if "failed" in answer:
            raise PeerFailed(answer["failed"])
        return answer

    def _last_words(self, command: str) -> str:
        code = self._process.wait()
        lines = self._log.read_text(errors="replace").strip().splitlines()
        said = f": {lines[-1][:200]}" if lines else ""
        return f"ended with exit code {code} at {command.split()[0]}{said}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process; again, it does nothing."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Turns:
    """Measures one row.

    Attributes:
        windows: timed windows of each way.

    Args:
        row: what to measure.
        ways: in which order.
        threads: threads of every way.
        windows: timed windows of each way.
        window_s: length of a window, seconds.
        limit_s: how long a first step may take, seconds.
        cached: also start again with the compiled code that was kept, and as users do.
        device: cpu, or cuda for the current GPU.
    """

    def __init__(
        self,
        row: Row,
        ways: Sequence[str],
        *,
        threads: int,
        windows: int,
        window_s: float,
        limit_s: float,
        cached: bool,
        device: str = "cpu",
    ):
        if windows < harness.MIN_WINDOWS:
            raise ValueError(f"At least {harness.MIN_WINDOWS} windows are needed, got {windows}.")
        self._row, self._ways, self._threads, self._device = row, ways, threads, device
        self.windows, self._window_s, self._limit_s = windows, window_s, limit_s
        self._answers: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        self._again = [way for way in ways if cached and way in CACHED]
        starting = [way for way in ways if cached and way in (ABELE, BACKEND)]
        self._users = [way for way in starting for _ in range(_STARTS)]
        self._results: dict[str, dict[str, Any]] = {way: {} for way in ways}
        self._cores: list[float] = []

    def measure(self) -> dict[str, Any]:
        """Return the row of a record; a way that fails has ``failed`` with the reason."""
        return together([self])[0]

    def begin(self, stack: contextlib.ExitStack) -> None:
        """Start the processes, which end with the stack, and take the first steps."""
        steps = len(self._ways) * (self.windows + 1) + len(self._again) + len(self._users)
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        desc = f"{self._row.name}, {self._threads} threads"
        self._bar = stack.enter_context(tqdm(total=steps, desc=desc, leave=False, disable=None))
        self._peers = {way: stack.enter_context(self._peer(way)) for way in self._ways}
        # One after the other: a start would disturb the others'.
        self._try_all("start")
        self._compare()
        self._try_all(f"calibrate {self._window_s}")

    def window(self) -> None:
        """Time a window of each way."""
        self._cores.append(round(harness.threads_over_one(self._threads), 2))
        for way in self._ways:
            if answer := self._try(way, self._peers[way], "window"):
                self._answers[way].append(answer)

    def end(self) -> dict[str, Any]:
        """End the processes, start others as asked for, and return the row."""
        self._summarize()
        self._try_all("end")
        for peer in self._peers.values():
            peer.end()
        for way in self._again:
            self._start_again(way, "cached_first_step_s")
        for number, way in enumerate(self._users):
            self._start_again(way, "users_first_steps_s", f"of-user-{number}")
        return {
            "title": self._row.title,
            "batch": self._row.batch,
            "ways": self._results,
            "ratio": ratios(self._results),
            "threads_over_one": self._cores,
        }

    def _try_all(self, command: str) -> None:
        for way, peer in self._peers.items():
            self._try(way, peer, command)

    def _peer(self, way: str, user: str = "") -> Peer:
        given = self._row, way, self._threads, self._folder, self._bar, self._device
        return Peer(*given, user=user)

    def _try(self, way: str, peer: Peer, command: str) -> dict[str, Any]:
        result = self._results[way]
        if "failed" in result:
            return {}
        self._bar.set_postfix_str(f"{way}: {command.split()[0]}")
        try:
            answer = peer.ask(command, self._limit_s)
        except PeerFailed as error:
            result["failed"] = str(error)
            return {}
        if command != "window":
            result.update(answer)
        self._bar.update(command in ("start", "window"))
        return answer

    def _compare(self) -> None:
        """Mark ways whose first losses are not plain PyTorch's: they measure something else."""
        expected = self._results.get(EAGER, {}).get("values", [])
        for result in self._results.values():
            pairs = zip(result.get("values", []), expected, strict=False)
            if any(not abs(a - b) <= self._row.tolerance * abs(b) for a, b in pairs):
                result["failed"] = f"its first losses are {result['values']}, eager's {expected}"

    def _summarize(self) -> None:
        for way, result in self._results.items():
            steps = result.pop("steps", None)
            if "failed" not in result:
                answers = self._answers[way]
                rates = [answer["step_per_s"] for answer in answers]
                result["step_per_s"] = harness.summary(rates, steps)
                result["cpu_s"] = statistics.median(answer["cpu_s"] for answer in answers)

    def _start_again(self, way: str, name: str, user: str = "") -> None:
        result = self._results[way]
        if "failed" in result:
            return
        self._bar.set_postfix_str(f"{way}: start again")
        with self._peer(way, user) as peer:
            try:
                first_s = peer.ask("start", self._limit_s)["first_step_s"]
                result[name] = [*result.get(name, []), first_s] if user else first_s
            except PeerFailed as error:
                result[f"{name}_failed"] = str(error)
        self._bar.update()


def together(several: Sequence[Turns]) -> list[dict[str, Any]]:
    """Return the row of each, measured in turns: all have as many windows as the first."""
    with contextlib.ExitStack() as stack:
        for turns in several:
            turns.begin(stack)
        for _ in range(several[0].windows):
            for turns in several:
                turns.window()
        return [turns.end() for turns in several]


def ratios(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return rates and memory of each way over plain PyTorch's, and abele's over its best peer."""
    rates = {
        way: result["step_per_s"]["median"]
        for way, result in results.items()
        if "failed" not in result
    }
    base, ratio = rates.get(EAGER), {}
    if base is not None:
        ratio = {way: round(rate / base, 3) for way, rate in rates.items()}
    if base is not None and ABELE in rates:
        memory = results[ABELE]["step_peak_mib"] / results[EAGER]["step_peak_mib"]
        ratio["memory"] = round(memory, 3)
    peers = [rates[way] for way in (COMPILE, JAX) if way in rates]
    if ABELE in rates and peers:
        ratio["abele / best peer"] = round(rates[ABELE] / max(peers), 3)
    return ratio

"""One way to measure: interleaved windows in one process, medians, and a record that says where.

Variants run in turns, one window each, so that a noisy neighbour disturbs all of them alike. What
is compared is the ratio of medians within one run; absolute numbers are only context.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

# What is measured is compiled, also in children; interpreted steps would end at an unknown window.
os.environ.setdefault("ABELE_START", "wait")
# Else each process compiles all modules of this project again, and first steps count some of that.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

RECORDS = Path(__file__).parent / "records"
MIN_WINDOWS = 10
STARTED = "BENCHMARK_STARTED"  # tells a child when its process was started, seconds since 1970


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Return a parser with the options of every benchmark."""
    parser.add_argument("--windows", type=int, default=12, help="timed windows (default 12)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--record", action="store_true", help="keep the result under records/")


def steps_per_second(
    variants: dict[str, Callable[[], Any]],
    *,
    windows: int,
    window_s: float = 0.4,
    pause_s: float = 0.0,
) -> dict[str, dict[str, Any]]:
    """Return rates of several ways to do the same step, measured in turns.

    Args:
        variants: name -> one step; must be ready to run (compiled, warm caches are made here).
        windows: timed windows per variant, at least 10.
        window_s: length of a window, seconds.
        pause_s: sleep before each window, followed by a tenth of its steps, seconds. Idle threads
            of ONNX Runtime and OpenVINO spin and would take cores from the next variant.

    Returns:
        For each variant: median, lowest and highest rate and the raw rates (steps/s).
    """
    if windows < MIN_WINDOWS:
        raise ValueError(f"At least {MIN_WINDOWS} windows are needed for a median, got {windows}.")
    counts = {name: calibrate(step, window_s) for name, step in variants.items()}
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for _ in tqdm(range(windows), desc="windows", leave=False, disable=None):
        for name, step in variants.items():
            if pause_s:
                time.sleep(pause_s)
                for _ in range(1 + counts[name] // 10):
                    step()
            started = time.perf_counter()
            for _ in range(counts[name]):
                step()
            rates[name].append(counts[name] / (time.perf_counter() - started))
    return {name: summary(entry, counts[name]) for name, entry in rates.items()}


def summary(rates: list[float], steps_per_window: int) -> dict[str, Any]:
    """Return what is kept of one variant's windows, rates in steps/s."""
    return {
        "median": statistics.median(rates),
        "lowest": min(rates),
        "highest": max(rates),
        "windows": [round(rate, 2) for rate in rates],
        "steps_per_window": steps_per_window,
    }


def calibrate(step: Callable[[], Any], window_s: float, *, warm: int = 5) -> int:
    """Warm a variant up and return how many steps fill a window.

    Args:
        step: one step.
        window_s: length of a window, seconds.
        warm: steps before the first that is timed.
    """
    for _ in range(warm):
        step()
    count = 1
    while True:
        started = time.perf_counter()
        for _ in range(count):
            step()
        took = time.perf_counter() - started
        if took > window_s / 4:
            return max(1, round(count * window_s / took))
        count *= 2


def ratios(rates: dict[str, dict[str, Any]], baseline: str) -> dict[str, float]:
    """Return the median rate of each variant over that of ``baseline``."""
    base = rates[baseline]["median"]
    return {name: round(entry["median"] / base, 3) for name, entry in rates.items()}


def environment() -> dict[str, Any]:
    """Return what a reader needs to judge the numbers."""
    return {
        "date": datetime.date.today().isoformat(),
        # Copies without a repository may say what they are a copy of.
        "commit": _output("git", "rev-parse", "--short", "HEAD") or os.environ.get("GIT_COMMIT"),
        "dirty": bool(_output("git", "status", "--porcelain", "--", "src")),
        "cpu": _cpu_name(),
        "cores": torch.get_num_threads() and _cores(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "compiler": _output("g++", "-dumpfullversion"),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cores() -> int:

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown"
    return cpu_name(text)


def cpu_name(description: str) -> str:
    """Return what a processor is called in records, and its widest vectors.

    Virtual machines name the maker alone, "AMD EPYC". Two generations of it differ by a factor of
    two, so such names get the number of the family: 25 is Zen 3 and 4, 26 is Zen 5.

    Args:
        description: what Linux has in ``/proc/cpuinfo``.
    """
    fields = dict(re.findall(r"^([\w ]+?)\s*: (.+)$", description.partition("\n\n")[0], re.M))
    name = fields.get("model name", "unknown")
    if not re.search(r"\d", name) and "cpu family" in fields:
        name += f" of family {fields['cpu family']}"
    features = [each for each in ("avx512f", "avx2") if each in fields.get("flags", "")]
    return f"{name} ({features[0] if features else 'no AVX2'})"


def threads_over_one(threads: int) -> float:
    """Return how many times as fast some threads multiply matrices as one thread, now.

    A machine that shares its cores with others gives two threads two cores at one time, and halves
    of one core a second later. Numbers of several threads mean little without this one.
    """
    a, b, out = (torch.ones(512, 512) for _ in range(3))
    before, least = torch.get_num_threads(), []
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            times = []
            for _ in range(6):
                began = time.perf_counter()
                torch.mm(a, b, out=out)
                times.append(time.perf_counter() - began)
            least.append(min(times))
    finally:
        torch.set_num_threads(before)
    return least[0] / least[1]


def peak_memory_mib() -> float:
    """Return the highest resident memory of this process so far, MiB."""
    try:
        # Unlike getrusage, this does not count the process that this one was forked from.
        status = Path("/proc/self/status").read_text()
        if found := re.search(r"VmHWM:\s*(\d+) kB", status):
            return int(found[1]) / 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 if sys.platform != "darwin" else 1024 * 1024)


def in_new_process(script: str, *arguments: str, env: dict[str, str] | None = None) -> dict:
    """Run a benchmark script's child mode and return the JSON of its last line."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, STARTED: str(time.time()), **(env or {})},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{script} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def write_record(theme: str, result: dict[str, Any], folder: Path = RECORDS) -> Path:
    """Keep a result as ``records/THEME_HARDWARE_DATE.json``; never overwrites another."""
    environment = result["environment"]
    hardware = re.sub(r"\W+", "-", environment["gpu"] or environment["cpu"]).strip("-").lower()
    stem = f"{theme}_{hardware}_{environment['threads']}t_{environment['date']}"
    path = folder / f"{stem}.json"
    count = 1
    while path.exists():
        count += 1
        path = folder / f"{stem}_{count}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path

"""What a GPU does in a training step: kernels, copies, and what the host does meanwhile.

python -m benchmarks.gpu_profile                       rows of the table, plain PyTorch and abele
python -m benchmarks.gpu_profile --rows a21 --out out/gpu

Each step begins with a batch on the host and ends when its results are there, as in the table. A
profile costs time itself: the step's is measured before it, without one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks import harness
from benchmarks.table import ways
from benchmarks.table.rows import ABELE, EAGER, ROWS
from torch.profiler import ProfilerActivity, profile

DEFAULT = ("a21", "mlp", "gpt")
_WARM, _LISTED = 5, 15
_NAME = 100  # characters of a kernel's name, which templates make long


def main() -> int:
    """Profile and print; keeps the result where ``--out`` says."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--rows", type=lambda text: text.split(","), default=DEFAULT)
    parser.add_argument("--ways", type=lambda text: text.split(","), default=(EAGER, ABELE))
    parser.add_argument("--steps", type=int, default=20, help="of each profile (default 20)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, help="folder of profile.json")
    options = parser.parse_args()
    ways.plain_float32()
    result: dict[str, Any] = {"environment": harness.environment(), "rows": {}}
    for name in options.rows:
        for way in options.ways:
            try:
                answer = profiled(name, way, options.steps, options.device)
            except Exception as error:  # noqa: BLE001 - the next row is worth as much
                answer = {"failed": f"{type(error).__name__}: {str(error).strip()[:300]}"}
            result["rows"].setdefault(name, {})[way] = answer
            print(_text(name, way, answer), flush=True)
            if options.out is not None:  # after each, because the next may be stopped
                options.out.mkdir(parents=True, exist_ok=True)
                (options.out / "profile.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


def profiled(name: str, way: str, steps: int, device: str) -> dict[str, Any]:
    """Return what a step of a row takes, and where, in microseconds.

    Args:
        name: of the row.
        way: how it is computed.
        steps: that are averaged.
        device: where.
    """
    row = ROWS[name]
    ways.load(row, way)
    step = ways.prepare(row, way, device)
    times = []
    for _ in range(_WARM + steps):
        began = time.perf_counter()
        ways.wait(step(), device)
        times.append(time.perf_counter() - began)
    kinds = [ProfilerActivity.CPU]
    if device == "cuda":
        kinds.append(ProfilerActivity.CUDA)
    with profile(activities=kinds) as taken:
        for _ in range(steps):
            ways.wait(step(), device)
    events = taken.key_averages()
    kernels = [each for each in events if each.device_type != torch.autograd.DeviceType.CPU]
    host = [each for each in events if each.device_type == torch.autograd.DeviceType.CPU]
    return {
        "step_us": round(statistics.median(times[_WARM:]) * 1e6, 1),
        "gpu_us": round(sum(each.self_device_time_total for each in kernels) / steps, 1),
        "launches": round(sum(each.count for each in kernels) / steps, 2),
        "gpu": _longest(kernels, steps, "self_device_time_total"),
        "host": _longest(host, steps, "self_cpu_time_total"),
    }


def _longest(events: list[Any], steps: int, time_of: str) -> list[list[Any]]:
    """Name, number and microseconds of a step, of those that take longest."""
    ordered = sorted(events, key=lambda each: -getattr(each, time_of))[:_LISTED]
    return [
        [each.key[:_NAME], round(each.count / steps, 2), round(getattr(each, time_of) / steps, 1)]
        for each in ordered
    ]


def _text(name: str, way: str, answer: dict[str, Any]) -> str:
    if "failed" in answer:
        return f"{name}, {way} failed: {answer['failed']}"
    share = f"{answer['gpu_us']:,.0f} of them in {answer['launches']:g} kernels and copies"
    lines = [f"{name}, {way}: {answer['step_us']:,.0f} us a step, {share}"]
    for place in ("gpu", "host"):
        for what, count, took in answer[place]:
            lines.append(f"  {place:4s} {took:10,.1f} us {count:8g} x {what}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

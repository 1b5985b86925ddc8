"""Times our convolution kernels against the library's, shape by shape.

    python benchmarks/few_channel_conv.py [--threads 1] [--windows 11] [--record]

Both run in one process, window by window in turn; the numbers are medians in microseconds. "all" is
the backward with all three gradients, "weights" without that of the input. The library's numbers
include torch's dispatch, ours a call through ctypes: a few microseconds each.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from abele.kernels.direct import Kernels

RECORDS = Path(__file__).parent / "records"

# batch, input channels, height and width, output channels, kernel, stride, padding
SHAPES = [
    (16, 1, 28, 5, 3, 1, 0),
    (16, 5, 13, 12, 5, 1, 0),
    (8, 5, 13, 12, 5, 1, 0),
    (20, 5, 13, 12, 5, 1, 0),
    (64, 1, 28, 6, 5, 1, 2),
    (64, 6, 14, 16, 5, 1, 0),
    (256, 8, 13, 16, 3, 1, 0),
    (8, 1, 28, 32, 3, 1, 1),
    (16, 1, 28, 32, 3, 1, 1),
    (64, 1, 28, 32, 3, 1, 0),
    (16, 3, 32, 16, 3, 1, 1),
    (16, 3, 32, 32, 3, 1, 1),
    (16, 3, 32, 64, 3, 1, 1),
    (16, 3, 32, 16, 3, 2, 1),
    (16, 3, 32, 6, 7, 2, 3),
    (16, 8, 64, 8, 3, 1, 1),
    (8, 12, 16, 12, 3, 1, 1),
    (16, 12, 14, 24, 3, 1, 1),
    (16, 12, 14, 64, 3, 1, 1),
    (16, 24, 28, 1, 3, 1, 1),
    (16, 64, 16, 2, 1, 1, 0),
    (16, 16, 16, 16, 3, 1, 1),
    (16, 20, 14, 24, 3, 1, 1),
    (16, 32, 16, 32, 3, 1, 1),
    (8, 8, 128, 8, 3, 1, 1),
    (4, 3, 32, 8, 3, 1, 1),
    (1, 3, 32, 8, 3, 1, 1),
]


def calls(kernels: Kernels, shape: tuple[int, ...], threads: int) -> dict[str, list[Callable]]:
    batch, channels, size, filters, kernel, stride, padding = shape
    x = torch.randn(batch, channels, size, size)
    weight, bias = torch.randn(filters, channels, kernel, kernel), torch.randn(filters)
    step, pad = [stride] * 2, [padding] * 2
    grad = torch.randn_like(torch.conv2d(x, weight, bias, step, pad))

    def library(mask: list[bool]) -> object:
        return torch.ops.aten.convolution_backward(
            grad, x, weight, [filters], step, pad, [1, 1], False, [0, 0], 1, mask
        )

    def own(mask: list[bool]) -> object:
        return kernels.conv_backward(grad, x, weight, step, pad, mask, threads)

    return {
        "forward": [
            lambda: torch.conv2d(x, weight, bias, step, pad),
            lambda: kernels.conv(x, weight, bias, step, pad, threads),
        ],
        "weights": [lambda: library([False, True, True]), lambda: own([False, True, True])],
        "all": [lambda: library([True] * 3), lambda: own([True] * 3)],
    }


def medians(functions: list[Callable], windows: int, window_s: float = 0.003) -> list[float]:
    repeats = []
    for function in functions:
        for _ in range(5):
            function()
        repeats.append(max(1, int(window_s / _seconds(function, 5))))
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(windows):
        for function, count, seconds in zip(functions, repeats, times, strict=True):
            seconds.append(_seconds(function, count))
    return [statistics.median(seconds) * 1e6 for seconds in times]


def _seconds(function: Callable, count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        function()
    return (time.perf_counter() - started) / count


def measure(kernels: Kernels, shape: tuple[int, ...], threads: int, windows: int) -> dict:
    row: dict = dict(
        zip(
            ("batch", "channels", "size", "filters", "kernel", "stride", "padding"),
            shape,
            strict=True,
        )
    )
    for name, functions in calls(kernels, shape, threads).items():
        library, kernel = medians(functions, windows)
        row[name] = {
            "library_us": round(library, 1),
            "own_us": round(kernel, 1),
            "ratio": round(library / kernel, 2),
        }
    return row


def line(row: dict) -> str:
    cells = (
        f"{name} {row[name]['library_us']:7.1f} {row[name]['own_us']:7.1f} "
        f"{row[name]['ratio']:5.2f}x"
        for name in ("forward", "weights", "all")
    )
    shape = (
        "{batch:3}x{channels:2}x{size:3}^2 -> {filters:2} k{kernel} s{stride} p{padding}".format(
            **row
        )
    )
    return " | ".join((shape, *cells))


def hardware() -> dict[str, object]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "machine": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": len(names),
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Own convolution kernels against the library's.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--windows", type=int, default=11)
    parser.add_argument("--record", action="store_true", help="write benchmarks/records/*.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    compiler = shutil.which("g++") or shutil.which("clang++") or "c++"
    with tempfile.TemporaryDirectory() as folder:
        kernels = Kernels(compiler, Path(folder) / "kernels.so")
        rows = []
        for shape in SHAPES:
            rows.append(measure(kernels, shape, options.threads, options.windows))
            print(line(rows[-1]), flush=True)
    if options.record:
        date = datetime.date.today().isoformat()
        record = {
            "date": date,
            "torch": torch.__version__,
            "threads": options.threads,
            "windows": options.windows,
            "hardware": hardware(),
            "rows": rows,
        }
        path = RECORDS / f"few_channel_conv_{options.threads}thread_{date}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(path)


if __name__ == "__main__":
    main()

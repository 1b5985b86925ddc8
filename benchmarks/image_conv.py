"""Our convolutions of large images with few channels against the library's, shape by shape.

    python benchmarks/image_conv.py [--threads 1] [--windows 12] [--record]

Both run in one process in turns, channels last; what counts is processor time, so that neighbours
matter less. ``abele/targets/cpu/op_by_op/convolutions.py`` takes its limits from here.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT / "src")

from abele import kernels  # noqa: E402 - after the path above
from abele.targets.cpu.op_by_op import library  # noqa: E402

aten = torch.ops.aten

# images, inputs, outputs, kernel, height, width
SHAPES = [
    (2, 1, 8, 5, 320, 512),
    (2, 8, 8, 3, 320, 512),
    (2, 16, 8, 1, 320, 512),
    (2, 8, 3, 1, 320, 512),
    (2, 16, 16, 3, 160, 256),
    (2, 32, 16, 1, 160, 256),
    (2, 24, 24, 3, 80, 128),
    (2, 32, 32, 3, 80, 128),
    (2, 40, 40, 3, 40, 64),
    (2, 48, 48, 3, 40, 64),
    (2, 64, 64, 3, 40, 64),
    (2, 16, 16, 5, 160, 256),
    (8, 8, 8, 3, 64, 16),
    (2, 3, 20, 3, 160, 256),
]


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    harness.add_arguments(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    compiler = shutil.which("g++") or shutil.which("clang++") or "c++"
    kernel_library = library.load(kernels.op_by_op_library(compiler, "benchmark"))
    rows = []
    for shape in SHAPES:
        rows.append(measure(kernel_library, shape, options))
        cells = [f"{name} {row['ratio']:5.2f} x" for name, row in rows[-1]["ways"].items()]
        print(f"{shape!s:28s} " + " | ".join(cells), flush=True)
    if options.record:
        result = {"environment": harness.environment(), "shapes": rows}
        print(f"record: {harness.write_record('image_conv', result).relative_to(ROOT)}")
    return 0


def measure(
    kernel_library: ctypes.CDLL, shape: tuple[int, ...], options: argparse.Namespace
) -> dict:
    """Return milliseconds of processor time of one shape, the library's and ours."""
    ways = {}
    for name, pair in calls(kernel_library, shape, options.threads).items():
        library_ms, kernel_ms = medians(pair, max(options.windows, harness.MIN_WINDOWS))
        ways[name] = {
            "library_ms": round(library_ms, 3),
            "own_ms": round(kernel_ms, 3),
            "ratio": round(library_ms / kernel_ms, 2),
        }
    return {"shape": shape, "ways": ways}


def calls(kernel_library: ctypes.CDLL, shape: tuple[int, ...], threads: int) -> dict[str, tuple]:
    """For each part of a step, the library's call and ours."""
    images, inputs, out, kernel, height, width = shape
    conv = library.Conv(images, height, width, inputs, out, kernel, 1.0)
    last = {"memory_format": torch.channels_last}
    x = torch.randn(images, inputs, height, width).contiguous(**last)
    y = torch.randn(images, out, height, width).contiguous(**last)
    weight, bias = torch.randn(out, inputs, kernel, kernel), torch.randn(out)
    half = [kernel // 2] * 2
    to_x, to_y, to_weight = (torch.empty_like(each) for each in (x, y, weight))
    rest = None, [1, 1], half, [1, 1], False, [0, 0], 1

    def at(*tensors: torch.Tensor) -> list[int]:
        return [each.data_ptr() for each in tensors]

    def theirs(*mask: bool) -> Callable[[], Any]:
        return lambda: aten.convolution_backward(y, x, weight, *rest, list(mask))

    pairs: dict[str, tuple] = {
        "forward": (
            lambda: aten.conv2d(x, weight, bias, [1, 1], half),
            lambda: kernel_library.abele_conv(conv, *at(x, weight, bias, to_y), 0, threads),
        ),
        "input": (
            theirs(True, False, False),
            lambda: kernel_library.abele_conv(conv, *at(y, weight), None, *at(to_x), 1, threads),
        ),
    }
    if out % 8 == 0 and (inputs == 1 or inputs % 8 == 0):
        arguments = (conv, *at(x, y, to_weight), threads)
        weight_gradient = functools.partial(kernel_library.abele_conv_weight_gradient, *arguments)
        pairs["weight"] = (theirs(False, True, False), weight_gradient)
    return pairs


def medians(pair: tuple[Callable, Callable], windows: int) -> list[float]:
    """Return milliseconds of processor time per call, in turns."""
    counts = [max(1, round(0.03 / _seconds(each, 2))) for each in pair]
    times: list[list[float]] = [[], []]
    for _ in range(windows):
        for each, count, seconds in zip(pair, counts, times, strict=True):
            seconds.append(_seconds(each, count))
    return [statistics.median(seconds) * 1e3 for seconds in times]


def _seconds(call: Callable, count: int) -> float:
    started = time.process_time()
    for _ in range(count):
        call()
    return max(time.process_time() - started, 1e-7) / count


if __name__ == "__main__":
    sys.exit(main())

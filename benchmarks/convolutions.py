"""Our convolutions in both layouts against the library's, shape by shape.

    python benchmarks/convolutions.py [--many] [--threads 1] [--windows 12] [--record]

All ways run in one process in turns; what counts is processor time, so that neighbours matter less.
"planes" are images with their channels apart, as in small networks; "last" are channels-last
images, as in large ones; "winograd" is our other way for these, and its library is that of "last".
"last/planes" is the time of our second way over that of our first. --many measures many channels,
without our first way.
`abele/passes/of_lowerings/convolutions.py` takes the limits of the first from here,
`abele/kernels/convolutions.py` those of the others.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import harness
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT / "src")

from abele.errors import CorruptExecutable  # noqa: E402 - after the path above
from abele.kernels import binding, build, on_tensors  # noqa: E402
from abele.targets.cpu.compiler import compiler, instruction_set  # noqa: E402

aten = torch.ops.aten
LAYOUTS = {"planes": torch.contiguous_format, "last": torch.channels_last}
PARTS = {"input": [True, False, False], "weight": [False, True, True]}

# images, inputs, outputs, kernel, height, width, stride, padding
SHAPES = [
    # the introduction model, and others of small images
    (16, 1, 5, 3, 28, 28, 1, 0),
    (16, 5, 12, 5, 13, 13, 1, 0),
    (16, 1, 5, 3, 28, 28, 1, 1),
    (16, 5, 12, 5, 16, 16, 1, 2),
    (64, 6, 16, 5, 14, 14, 1, 0),
    (256, 8, 16, 3, 13, 13, 1, 0),
    (16, 3, 16, 3, 32, 32, 1, 1),
    (16, 3, 64, 3, 32, 32, 1, 1),
    (16, 3, 16, 3, 32, 32, 2, 1),
    (16, 12, 24, 3, 14, 14, 1, 1),
    (16, 16, 16, 3, 16, 16, 1, 1),
    (16, 32, 32, 3, 16, 16, 1, 1),
    (16, 8, 8, 3, 64, 64, 1, 1),
    (8, 8, 8, 3, 128, 128, 1, 1),
    (8, 8, 8, 3, 64, 16, 1, 1),
    # few samples
    (1, 1, 5, 3, 28, 28, 1, 0),
    (1, 5, 12, 5, 13, 13, 1, 0),
    (4, 5, 12, 5, 13, 13, 1, 0),
    (1, 3, 32, 3, 224, 224, 1, 1),
    (2, 32, 32, 3, 80, 128, 1, 1),
    # CosmicTagger
    (2, 1, 8, 5, 320, 512, 1, 2),
    (2, 8, 8, 3, 320, 512, 1, 1),
    (2, 16, 8, 1, 320, 512, 1, 0),
    (2, 8, 3, 1, 320, 512, 1, 0),
    (2, 16, 16, 3, 160, 256, 1, 1),
    (2, 32, 16, 1, 160, 256, 1, 0),
    (2, 24, 24, 3, 80, 128, 1, 1),
    (2, 32, 32, 3, 80, 128, 1, 1),
    (2, 48, 48, 3, 40, 64, 1, 1),
    (2, 64, 64, 3, 40, 64, 1, 1),
]

MANY = [
    # ResNet-18
    (32, 64, 64, 3, 32, 32, 1, 1),
    (32, 128, 128, 3, 16, 16, 1, 1),
    (32, 256, 256, 3, 8, 8, 1, 1),
    (32, 512, 512, 3, 4, 4, 1, 1),
    # U-Net
    (2, 16, 16, 3, 256, 256, 1, 1),
    (2, 32, 16, 3, 256, 256, 1, 1),
    (2, 32, 32, 3, 128, 128, 1, 1),
    (2, 64, 64, 3, 64, 64, 1, 1),
    (2, 128, 128, 3, 32, 32, 1, 1),
    # limits: registers that are not full, tiles beyond the image
    (2, 24, 24, 3, 80, 128, 1, 1),
    (2, 40, 40, 3, 40, 64, 1, 1),
    (8, 64, 64, 3, 5, 5, 1, 1),
    (8, 64, 64, 3, 7, 7, 1, 1),
]


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    harness.add_arguments(parser)
    parser.add_argument("--many", action="store_true", help="shapes with many channels")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    code = build.shared_library(compiler() or "g++", instruction_set())
    kernels, rows = binding.load(code), []
    for shape in MANY if options.many else SHAPES:
        rows.append(measure(kernels, shape, options))
        print(f"{shape!s:36s} " + " | ".join(map(line, rows[-1]["parts"].items())), flush=True)
    if options.record:
        result = {"environment": harness.environment(), "shapes": rows}
        theme = "convolutions-many-channels" if options.many else "convolutions"
        print(f"record: {harness.write_record(theme, result).relative_to(ROOT)}")
    return 0


def line(part: tuple[str, dict[str, Any]]) -> str:
    """Both ratios of one part of a step, library over ours: above one we are faster."""
    name, ratios = part
    cells = (f"{way} {ratio:5.2f}x" for way, ratio in ratios["library_over_ours"].items())
    both = ratios["last_over_planes"]
    return " ".join((name, *cells, "" if both is None else f"(last/planes {both:.2f})"))


def measure(
    kernels: ctypes.CDLL, shape: tuple[int, ...], options: argparse.Namespace
) -> dict[str, Any]:
    """Return microseconds of processor time of one shape, for each part of a step and way."""
    ways: dict[str, dict[str, Callable[[], Any]]] = {"forward": {}, "input": {}, "weight": {}}
    for layout in LAYOUTS:
        for part, pair in calls(kernels, shape, layout, options.threads).items():
            for way, call in pair.items():
                # Far from their field; they would take most of the time.
                if way == "ours planes" and options.many:
                    continue
                if runs(call):
                    ways[part][way] = call
    parts: dict[str, Any] = {}
    for part, windows in ways.items():
        took = medians(windows, max(options.windows, harness.MIN_WINDOWS))
        ratios = {
            way: round(took[f"library {layout}"] / took[f"ours {way}"], 2)
            for way, layout in (*zip(LAYOUTS, LAYOUTS, strict=True), ("winograd", "last"))
            if f"ours {way}" in took
        }
        parts[part] = {
            "us": {way: round(us, 1) for way, us in took.items()},
            "library_over_ours": ratios,
            "last_over_planes": round(took["ours last"] / took["ours planes"], 2)
            if {"ours last", "ours planes"} <= took.keys()
            else None,
        }
    return {"shape": shape, "parts": parts}


def calls(
    kernels: ctypes.CDLL, shape: tuple[int, ...], layout: str, threads: int
) -> dict[str, dict[str, Callable[[], Any]]]:
    """For each part of a step, the library's call and ours in one layout."""
    images, inputs, out, kernel, height, width, step, pad = shape
    order = LAYOUTS[layout]
    x = torch.randn(images, inputs, height, width).contiguous(memory_format=order)
    weight, bias = torch.randn(out, inputs, kernel, kernel), torch.randn(out)
    moves = [step, step], [pad, pad]
    y = aten.conv2d(x, weight, bias, *moves)
    grad = torch.randn(y.shape).contiguous(memory_format=order)
    settings = {"layout": order, "threads": threads}

    ways = {layout: False} | ({"winograd": True} if layout == "last" else {})

    def forward(winograd: bool) -> torch.Tensor:
        function = "winograd" if winograd else "conv"
        run = on_tensors.conv(kernels, x.shape, weight.shape, *moves, **settings, function=function)
        return run(x, weight, bias)

    def backward(winograd: bool, mask: list[bool]) -> list[torch.Tensor | None]:
        sizes = x.shape, weight.shape, *moves, mask
        function = "winograd" if winograd else "conv"
        run = on_tensors.conv_backward(kernels, *sizes, **settings, function=function)
        return run(grad, x, weight)

    rest = [out], *moves, [1, 1], False, [0, 0], 1
    library = f"library {layout}"
    parts: dict[str, dict[str, Callable[[], Any]]] = {
        "forward": {library: lambda: aten.conv2d(x, weight, bias, *moves)}
        | {f"ours {way}": partial(forward, how) for way, how in ways.items()}
    }
    for part, mask in PARTS.items():
        parts[part] = {library: partial(aten.convolution_backward, grad, x, weight, *rest, mask)}
        parts[part] |= {f"ours {way}": partial(backward, how, mask) for way, how in ways.items()}
    return parts


def runs(call: Callable[[], Any]) -> bool:
    """Whether there is code for a call."""
    try:
        call()
    except CorruptExecutable:
        return False
    return True


def medians(ways: dict[str, Callable[[], Any]], windows: int) -> dict[str, float]:
    """Return microseconds of processor time per call, in turns."""
    counts = {way: max(1, round(0.02 / _seconds(call, 2))) for way, call in ways.items()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(windows):
        for way, call in ways.items():
            times[way].append(_seconds(call, counts[way]))
    return {way: statistics.median(seconds) * 1e6 for way, seconds in times.items()}


def _seconds(call: Callable[[], Any], count: int) -> float:
    started = time.process_time()
    for _ in range(count):
        call()
    return max(time.process_time() - started, 1e-7) / count


if __name__ == "__main__":
    sys.exit(main())

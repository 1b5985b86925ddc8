"""CosmicTagger's network, plain PyTorch and abele side by side: images per second and peak memory.

python benchmarks/cosmictagger.py                          A21 at downsample 2, two threads
python benchmarks/cosmictagger.py --downsample 1 --record

Each way runs in a process of its own, so that its peak memory is its own and its allocator as it
comes; they take their windows in turns, so that a noisy neighbour disturbs both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import torch

ROOT = Path(__file__).resolve().parent.parent
# Not the folder of this file: it has the name of the package.
sys.path[0] = str(ROOT / "src")

WAYS = ("eager", "abele")
BATCH = 2


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    harness.add_arguments(parser)
    parser.set_defaults(threads=2)
    parser.add_argument("--downsample", type=int, default=2, help="2: 320 x 512 (default)")
    parser.add_argument("--network", default="a21", help="a network by name (default a21)")
    parser.add_argument("--steps", type=int, default=2, help="steps in a window (default 2)")
    parser.add_argument("--inference", action="store_true", help="forward without loss instead")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        return _serve(options)
    torch.set_num_threads(options.threads)
    result = measure(options)
    _print(result)
    if options.record:
        theme = f"cosmictagger_{options.network}_ds{options.downsample}_{result['mode']}"
        print(f"record: {harness.write_record(theme, result).relative_to(ROOT)}")
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return windows of both ways in turns, each in its process; medians and their ratio."""
    children = {way: _start(way) for way in WAYS}
    try:
        # One after the other: a start would disturb the other's.
        ready = {way: _ask(child, "start") for way, child in children.items()}
        windows: dict[str, list[dict]] = {way: [] for way in WAYS}
        for _ in range(max(options.windows, harness.MIN_WINDOWS)):
            for way, child in children.items():
                windows[way].append(_ask(child, "window"))
        ends = {way: _ask(child, "end") for way, child in children.items()}
    finally:
        for child in children.values():
            assert child.stdin is not None
            child.stdin.close()  # they end when nobody asks any more
            child.wait()
    ways = {way: _summary(windows[way], ready[way] | ends[way]) for way in WAYS}
    plain, compiled = ways["eager"], ways["abele"]
    return {
        "environment": harness.environment(),
        "mode": "inference" if options.inference else "training",
        "batch": BATCH,
        "ways": ways,
        "ratio": {
            "images_per_s": round(compiled["images_per_s"] / plain["images_per_s"], 3),
            "cpu_s": round(compiled["cpu_s"] / plain["cpu_s"], 3),
            "peak_mib": round(compiled["peak_mib"] / plain["peak_mib"], 3),
        },
    }


def _summary(windows: list[dict], extra: dict) -> dict[str, Any]:
    seconds = [window["seconds"] for window in windows]
    return {
        "images_per_s": BATCH / statistics.median(seconds),
        "best_images_per_s": BATCH / min(seconds),
        "cpu_s": statistics.median(window["cpu"] for window in windows),
        "seconds": [round(value, 4) for value in seconds],
        **extra,
    }


def _print(result: dict[str, Any]) -> None:
    for way, figures in result["ways"].items():
        print(
            f"{way:6s} {figures['images_per_s']:.3f} images/s "
            f"(best {figures['best_images_per_s']:.3f}), "
            f"{figures['cpu_s']:.3f} CPU s a step, peak {figures['peak_mib']:.0f} MiB, "
            f"first step after {figures['first_step_s']:.1f} s"
        )
    ratio = result["ratio"]
    print(
        f"abele / eager: {ratio['images_per_s']:.2f} x images/s, {ratio['cpu_s']:.2f} x CPU time, "
        f"{ratio['peak_mib']:.2f} x peak memory ({result['mode']})"
    )


# -- one way, in a process of its own ------------------------------------------------------------


def _start(way: str) -> subprocess.Popen:
    command = [sys.executable, "-W", "ignore", __file__, *sys.argv[1:], "--way", way]
    environment = {**os.environ, harness.STARTED: str(time.time())}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def _ask(child: subprocess.Popen, command: str) -> dict[str, Any]:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{command}\n")
    child.stdin.flush()
    line = child.stdout.readline()
    if not line:
        raise RuntimeError(f"A way ended with exit code {child.wait()} when asked to {command}.")
    return json.loads(line)


def _serve(options: argparse.Namespace) -> int:
    """Answer each line of standard input with one line of JSON."""
    # What libraries print must not mix with the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    torch.set_num_threads(options.threads)
    step: Callable[[], Any] = lambda: None  # noqa: E731 - replaced by "start"
    for line in sys.stdin:
        reply: dict[str, Any] = {}
        if line.strip() == "start":
            step, reply = _prepare(options)
        elif line.strip() == "window":
            started, cpu = time.perf_counter(), time.process_time()
            for _ in range(options.steps):
                step()
            reply["seconds"] = (time.perf_counter() - started) / options.steps
            reply["cpu"] = (time.process_time() - cpu) / options.steps
        else:
            reply["peak_mib"] = harness.peak_memory_mib()
        print(json.dumps(reply), file=answers, flush=True)
    return 0


def _prepare(options: argparse.Namespace) -> tuple[Callable[[], Any], dict[str, Any]]:
    from cosmictagger.config.network import named
    from cosmictagger.measures import Loss
    from cosmictagger.models import LossInForward, build

    height, width = 1280 >> options.downsample, 2048 >> options.downsample
    torch.manual_seed(0)
    network = build(named(options.network), (height, width))
    image = torch.randn(BATCH, 3, height, width)
    label = torch.randint(0, 3, (BATCH, 3, height, width))
    model = network if options.inference else LossInForward(network, Loss("focal"))
    batch = (image,) if options.inference else (image, label)
    began = time.time()
    step = (_eager if options.way == "eager" else _abele)(model, batch, options.inference)
    step()
    now = time.time()
    seconds = {
        "first_step_s": now - began,
        "since_start_s": now - float(os.environ[harness.STARTED]),
    }
    step()
    return step, {name: round(value, 2) for name, value in seconds.items()}


def _eager(model: torch.nn.Module, batch: tuple, inference: bool) -> Callable[[], Any]:
    if inference:
        model.eval()

        def forward() -> Any:
            with torch.inference_mode():
                return model(*batch)

        return forward
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)

    def step() -> Any:
        optimizer.zero_grad()
        *_, loss = model(*batch)
        loss.backward()
        optimizer.step()
        return loss

    return step


def _abele(model: torch.nn.Module, batch: tuple, inference: bool) -> Callable[[], Any]:
    import poptorch

    class Last(torch.nn.Module):
        """Names the loss, of which the network has one for each plane."""

        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, *inputs: torch.Tensor) -> tuple:
            *logits, loss = self.inner(*inputs)
            return *logits, poptorch.identity_loss(loss, "none")

    quiet = poptorch.Options().showCompilationProgressBar(False)
    if inference:
        wrapped = poptorch.inferenceModel(model.eval(), quiet)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
        wrapped = poptorch.trainingModel(Last(), quiet, optimizer)
    return lambda: wrapped(*batch)


if __name__ == "__main__":
    sys.exit(main())

"""A pipeline of two stages against the same model run as one program, with one thread and with two.

python benchmarks/pipeline.py             a convolutional network, compiled
python benchmarks/pipeline.py --record    and keep the result
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import poptorch  # noqa: E402 - after the path above, so that a checkout needs no installation

ROWS = 16


class Network(nn.Module):
    """Four convolutions on 32 x 32 images, in two halves of about equal work; loss inside."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )
        self.second = nn.Sequential(
            nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(2 * width, 10)
        poptorch.BeginBlock(self.first, "first", ipu_id=0)
        poptorch.BeginBlock(self.second, "second", ipu_id=1)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Images [B, 3, 32, 32], labels [B] -> loss."""
        features = self.second(self.first(images)).mean((2, 3))
        return F.cross_entropy(self.head(features), labels)


def trainer(how: str, options: argparse.Namespace) -> poptorch.PoplarExecutor:
    """Return a compiled wrapper that runs as a pipeline (``workers``) or as one program."""
    os.environ["ABELE_PIPELINE"] = how
    torch.manual_seed(0)
    model = Network(options.width)
    settings = poptorch.Options().showCompilationProgressBar(False)
    settings.Training.gradientAccumulation(options.micro_batches)
    rule = poptorch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    wrapped = poptorch.trainingModel(model, settings, rule)
    wrapped.compile(*_batch(options))
    return wrapped


def _batch(options: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    rows = ROWS * options.micro_batches
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(rows, 3, 32, 32, generator=generator)
    return images, torch.randint(0, 10, (rows,), generator=generator)


def _with_threads(step: Callable[[], Any], threads: int) -> Callable[[], Any]:
    def run() -> None:
        torch.set_num_threads(threads)
        step()

    return run


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], poptorch.PoplarExecutor]:
    """Return updates per second of the three ways, and the pipelined wrapper."""
    batch = _batch(options)
    torch.set_num_threads(1)
    piped, plain = trainer("workers", options), trainer("sequential", options)
    steps = {
        "one program, 1 thread": _with_threads(lambda: plain(*batch), 1),
        "one program, 2 threads": _with_threads(lambda: plain(*batch), 2),
        "pipeline of 2 stages, 1 thread each": _with_threads(lambda: piped(*batch), 1),
    }
    rates = harness.steps_per_second(steps, windows=options.windows, window_s=2.0)
    torch.set_num_threads(options.threads)
    build = piped.build_record
    assert build is not None  # it has been called
    return {
        "environment": harness.environment(),
        "width": options.width,
        "micro_batches": options.micro_batches,
        "target": piped.target,
        "lowerings": {name: dataclasses.asdict(chosen) for name, chosen in build.lowerings.items()},
        "update_per_s": rates,
        "ratio": harness.ratios(rates, "one program, 1 thread"),
        "pipeline": piped.pipelineReport().as_data(),
    }, piped


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    harness.add_arguments(parser)
    parser.add_argument("--width", type=int, default=32, help="channels (default 32)")
    parser.add_argument("--micro-batches", type=int, default=8, help="of an update (default 8)")
    options = parser.parse_args()
    result, piped = measure(options)
    for name, ratio in result["ratio"].items():
        rate = result["update_per_s"][name]["median"]
        print(f"{name:36s} {rate:6.2f} updates/s  {ratio:.2f}")
    print(piped.pipelineReport())
    if options.record:
        print(f"record: {harness.write_record('pipeline', result).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

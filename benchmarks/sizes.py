"""Steps per second against batch, width and threads, with what this machine could do at most.

    python benchmarks/sizes.py --threads 1 --part one.json     measures, about a minute
    python benchmarks/sizes.py --threads 2 --part two.json
    python benchmarks/sizes.py --join one.json two.json        keeps the record, renews docs/sizes.*

The network has four linear layers of one width and trains by SGD with momentum. Three limits are
measured beside it: products of large matrices (FLOP/s), adding arrays as large as the weights
(bytes/s, so that caches count), and a step of next to nothing (what a call costs).
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import sizes_page
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

import poptorch

LAYERS = 4
BATCH, WIDTH = 64, 512  # where the other one changes
BATCHES, WIDTHS = (1, 4, 16, 64, 256, 1024), (16, 64, 256, 512, 1024, 2048)
POINTS = sorted({*((batch, WIDTH) for batch in BATCHES), *((BATCH, width) for width in WIDTHS)})
LEAST = (1, 2)
# Products of a layer in a step: forward, by weights and by inputs; of the first no gradient of
# inputs is wanted.
PRODUCTS = 3 * LAYERS - 1
# Weights are read by forward and backward, gradients written and read, the momentum read and
# written, weights written.
PASSES = 7


class Dense(nn.Module):
    """Linear layers of one width with ReLU between them, and the loss."""

    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Vectors [B, width], labels [B] -> loss."""
        *inner, last = self.layers
        for layer in inner:
            x = F.relu(layer(x))
        return F.cross_entropy(last(x), labels)


def steps(batch: int, width: int) -> dict[str, Callable[[], Any]]:
    """Return a training step of plain PyTorch and one of abele, on a batch that stays.

    Both begin with the same weights and return the loss.
    """
    torch.manual_seed(0)
    inputs = torch.randn(batch, width), torch.randint(0, width, (batch,))
    model = Dense(width)
    ours = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def eager() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(*inputs)
        loss.backward()
        optimizer.step()
        return loss.detach()

    options = poptorch.Options().showCompilationProgressBar(False)
    settings = torch.optim.SGD(ours.parameters(), lr=1e-3, momentum=0.9)
    wrapped = poptorch.trainingModel(ours, options, settings)
    return {"eager": eager, "abele": lambda: wrapped(*inputs)}


def fastest(work: Callable[[], Any], seconds: float = 0.3) -> float:
    """Return the shortest time of a piece of work, seconds."""
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def limits() -> dict[str, Any]:
    """Return what this machine does at most with the present number of threads."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    out = torch.empty(1024, 1024)
    flops = 2 * 1024**3 / fastest(lambda: torch.mm(a, b, out=out))
    rates = {}
    for width in sorted({width for _, width in POINTS}):
        parameters = LAYERS * width * width
        x, y = torch.zeros(parameters), torch.ones(parameters)
        rates[str(width)] = 3 * 4 * parameters / fastest(lambda x=x, y=y: x.add_(y), 0.1)
    return {
        "flop_per_s": flops,
        "byte_per_s": rates,
        "call_s": fastest(steps(*LEAST)["abele"]),
    }


def bounds(limit: dict[str, Any], batch: int, width: int) -> dict[str, float]:
    """Return steps/s that each limit alone would allow."""
    flop = 2 * batch * width * width * PRODUCTS
    traffic = PASSES * 4 * LAYERS * width * width
    return {
        "arithmetic": limit["flop_per_s"] / flop,
        "memory": limit["byte_per_s"][str(width)] / traffic,
        "call": 1 / limit["call_s"],
    }


def measured(windows: int, window_s: float) -> dict[str, Any]:
    """Return all points with the present number of threads, and the limits around them."""
    before, points = limits(), []
    for batch, width in POINTS:
        rates = harness.steps_per_second(steps(batch, width), windows=windows, window_s=window_s)
        points.append({"batch": batch, "width": width, "step_per_s": rates})
    after = limits()  # the better of both: a neighbour may have disturbed one
    byte_rates = {
        width: max(rate, after["byte_per_s"][width]) for width, rate in before["byte_per_s"].items()
    }
    best = {
        "flop_per_s": max(before["flop_per_s"], after["flop_per_s"]),
        "byte_per_s": byte_rates,
        "call_s": min(before["call_s"], after["call_s"]),
    }
    for point in points:
        point["bounds"] = bounds(best, point["batch"], point["width"])
    return {"threads": torch.get_num_threads(), "limits": best, "points": points}


def main() -> int:
    """Measure a part, or join parts to a record and renew the page."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--windows", type=int, default=10, help="of each way (default 10)")
    parser.add_argument("--window-s", type=float, default=0.1, help="seconds (default 0.1)")
    parser.add_argument("--part", type=Path, help="file for what is measured")
    parser.add_argument("--join", type=Path, nargs="+", metavar="PART", help="parts of a record")
    options = parser.parse_args()
    if options.join:
        parts = [json.loads(path.read_text()) for path in options.join]
        result = {
            "environment": {**parts[0]["environment"], "threads": len(parts)},
            "parts": [part["measured"] for part in parts],
        }
        sizes_page.renew(result, harness.write_record("sizes", result).name)
        return 0
    if options.part is None:
        parser.error("--part or --join is needed")
    torch.set_num_threads(options.threads)
    part = measured(options.windows, options.window_s)
    text = json.dumps({"environment": harness.environment(), "measured": part}, indent=1)
    options.part.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

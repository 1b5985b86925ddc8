"""Training in 16 bits against float32: seconds of a step in turns, and memory of the program.

    python benchmarks/half_precision.py
    python benchmarks/half_precision.py --threads 1 --record

For each network, one process holds a wrapper per type and calls them in windows that take turns.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT), str(ROOT / "examples")]

from benchmarks.models import cosmic, gpt, pictures  # noqa: E402

import poptorch  # noqa: E402 - after the path above, so that a checkout needs no installation
from cosmictagger.config.network import named  # noqa: E402
from cosmictagger.measures import Loss  # noqa: E402
from cosmictagger.models import LossInForward, build  # noqa: E402
from garment_model import ClassificationModel  # noqa: E402

TYPES = (torch.float32, torch.float16, torch.bfloat16)


def small() -> nn.Module:
    """Build the small network of CosmicTagger with its loss."""
    network = build(named("uresnet", **cosmic.SMALL), cosmic.SMALL_SIZE)
    return LossInForward(network, Loss("focal"), mark)


def mark(loss: torch.Tensor) -> torch.Tensor:
    """Mark the final loss of a network."""
    return poptorch.identity_loss(loss, "none")


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "introduction": (ClassificationModel, lambda: pictures.batch(16)),
    "gpt": (gpt.GPT, lambda: gpt.batch(12)),
    "small": (small, lambda: cosmic.batch(4, cosmic.SMALL_SIZE)),
    "a21": (lambda: cosmic.a21(mark), lambda: cosmic.batch(1)),
}


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    harness.add_arguments(parser)
    parser.add_argument("--only", choices=MODELS, help="one network instead of all")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {"environment": harness.environment(), "models": {}}
    for name in [options.only] if options.only else MODELS:
        made = result["models"][name] = measure(name, options.windows)
        for dtype, ratio in made["steps"].items():
            print(
                f"{name:14s} {dtype:9s} a step takes {1 / ratio:.2f} times as long as in float32 "
                f"and has {made['memory'][dtype] / made['memory']['float32']:.2f} of its memory"
            )
    if options.record:
        print(f"record: {harness.write_record('half_precision', result).relative_to(ROOT)}")
    return 0


def measure(name: str, windows: int) -> dict[str, Any]:
    """Return rates of steps relative to float32, and bytes of memory at the peak, by type."""
    steps: dict[str, Callable[[], Any]] = {}
    memory: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for dtype in TYPES:
            kind = str(dtype).removeprefix("torch.")
            steps[kind] = step_of(name, dtype, f"{folder}/{kind}")
            report = json.loads(Path(f"{folder}/{kind}/training/run.json").read_text("utf-8"))
            memory[kind] = max(each["memory"]["peak"] for each in report["programs"])
        rates = harness.steps_per_second(steps, windows=windows)
    return {"steps": harness.ratios(rates, "float32"), "rates": rates, "memory": memory}


def step_of(name: str, dtype: torch.dtype, folder: str) -> Callable[[], Any]:
    """Return a compiled training step in a type, whose report is in a folder."""
    make, batch = MODELS[name]
    torch.manual_seed(0)
    model = make().train().to(dtype)
    inputs = [each.to(dtype) if each.is_floating_point() else each for each in batch()]
    options = poptorch.Options().showCompilationProgressBar(False).startMode("wait")
    options.enableProfiling(folder)
    scale = 128.0 if dtype is torch.float16 else 1.0
    optimizer = poptorch.optim.Adam(model.parameters(), lr=1e-4, eps=1e-5, loss_scaling=scale)
    step = poptorch.trainingModel(model, options, optimizer)
    step(*inputs)
    return lambda: step(*inputs)


if __name__ == "__main__":
    sys.exit(main())

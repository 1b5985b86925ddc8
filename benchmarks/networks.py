"""Other networks that people train: how much faster than plain PyTorch, and never slower?

python benchmarks/networks.py --threads 2             all of them
python benchmarks/networks.py --only mobilenet,resnet50 --threads 2 --record

Whole training steps in float32 with SGD and momentum, in turns in one process.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import harness
import torch
from models import bottlenecks, encoder, recurrent, residual, separable
from torch import nn
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import poptorch  # noqa: E402 - after the path above, so that a checkout needs no installation

# The first loss may differ from plain PyTorch's by this, relative to it.
_TOLERANCE = 1e-4


class Network(NamedTuple):
    """What is trained on which batch."""

    title: str
    make: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, ...]]


NETWORKS = {
    "mobilenet": Network(
        "MobileNetV2, 224 x 224, batch 8", separable.mobilenet, lambda: separable.batch(8, 224)
    ),
    "efficientnet": Network(
        "EfficientNet-B0, 224 x 224, batch 8",
        separable.efficientnet,
        lambda: separable.batch(8, 224),
    ),
    "convnext": Network(
        "ConvNeXt, half the smallest, 128 x 128, batch 8",
        separable.convnext,
        lambda: separable.batch(8, 128),
    ),
    "resnet50": Network(
        "ResNet-50, 128 x 128, batch 4", bottlenecks.resnet50, lambda: separable.batch(4, 128)
    ),
    "densenet": Network(
        "DenseNet, 40 layers, 32 x 32, batch 16",
        bottlenecks.densenet,
        lambda: separable.batch(16, 32),
    ),
    "resnet18": Network(
        "ResNet-18, 32 x 32, batch 32", residual.ResNet18, lambda: residual.batch(32)
    ),
    "transformer": Network(
        "encoder, 4 layers of 256, sequence 128, batch 8",
        encoder.Transformer,
        lambda: encoder.batch(8),
    ),
    "gru": Network(
        "GRU, 64 steps of 128 units, batch 32",
        functools.partial(recurrent.Recurrent, nn.GRU),
        lambda: recurrent.batch(32),
    ),
    "rnn": Network(
        "RNN, 64 steps of 128 units, batch 32",
        functools.partial(recurrent.Recurrent, nn.RNN),
        lambda: recurrent.batch(32),
    ),
    "gru-alone": Network(
        "GRU, 64 steps of 128 units, batch 1",
        functools.partial(recurrent.Recurrent, nn.GRU),
        lambda: recurrent.batch(1),
    ),
}


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    harness.add_arguments(parser)
    parser.add_argument("--only", help=f"some of {', '.join(NETWORKS)}, with commas between")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(NETWORKS)
    unknown = [name for name in names if name not in NETWORKS]
    if unknown:
        parser.error(f"no network is called {', '.join(unknown)}; there are {', '.join(NETWORKS)}")
    torch.set_num_threads(options.threads)
    results = {}
    for name in tqdm(names, unit="network"):
        results[name] = measure(NETWORKS[name], options.windows)
        tqdm.write(line(results[name]))
        gc.collect()
    if options.record:
        result = {"environment": harness.environment(), "networks": results}
        print(f"record: {harness.write_record('networks', result).relative_to(ROOT)}")
    return 0


def line(result: dict[str, Any]) -> str:
    """Format a network's result in a line."""
    rates = result["step_per_s"]
    return (
        f"{result['title']}: eager {rates['eager']['median']:.2f}, abele "
        f"{rates['abele']['median']:.2f} steps/s: {result['ratio']['abele']:.2f} x eager "
        f"({result['lowering']}); first step after {result['first_step_s']:.1f} s"
    )


def measure(network: Network, windows: int) -> dict[str, Any]:
    """Return rates of one network's training step, plain and compiled.

    Raises:
        RuntimeError: the first losses differ.
    """
    torch.manual_seed(0)
    inputs, plain = network.batch(), network.make()
    model = copy.deepcopy(plain)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)

    def eager() -> torch.Tensor:
        optimizer.zero_grad()
        loss = plain(*inputs)
        loss.backward()
        optimizer.step()
        return loss.detach()

    quiet = poptorch.Options().showCompilationProgressBar(False)
    rule = poptorch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    wrapped = poptorch.trainingModel(model, quiet, rule)
    started = time.perf_counter()
    first = float(wrapped(*inputs))
    first_step_s = time.perf_counter() - started
    losses = first, float(eager())
    if abs(losses[0] - losses[1]) > _TOLERANCE * abs(losses[1]):
        raise RuntimeError(f"{network.title}: first losses differ, {losses[0]} and {losses[1]}.")
    steps = {"eager": eager, "abele": lambda: wrapped(*inputs)}
    rates = harness.steps_per_second(steps, windows=windows, window_s=1.0)
    record = wrapped.build_record
    assert record is not None, "it has run"
    chosen = record.lowerings["step"]
    return {
        "title": network.title,
        "first_step_s": round(first_step_s, 2),
        "lowering": chosen.name,
        "reason": chosen.reason,
        "step_per_s": rates,
        "ratio": harness.ratios(rates, "eager"),
    }


if __name__ == "__main__":
    sys.exit(main())

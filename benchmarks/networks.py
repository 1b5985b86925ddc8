"""Networks that libraries already run well: abele must not be slower than plain PyTorch.

python benchmarks/networks.py                 a residual network and a transformer, one thread
python benchmarks/networks.py --only transformer --record
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import torch
from models import encoder, residual
from models.encoder import Transformer
from models.residual import ResNet18
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import poptorch  # noqa: E402 - after the path above, so that a checkout needs no installation

NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable]] = {
    "resnet18": (ResNet18, lambda: residual.batch(32)),
    "transformer": (Transformer, lambda: encoder.batch(8)),
}


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    harness.add_arguments(parser)
    parser.add_argument("--only", choices=NETWORKS, help="one network instead of all")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in [options.only] if options.only else NETWORKS:
        result = measure(name, options.windows)
        rates, ratio = result["step_per_s"], result["ratio"]["abele"]
        print(
            f"{name:12s} eager {rates['eager']['median']:.2f} steps/s, "
            f"abele {rates['abele']['median']:.2f} steps/s: {ratio:.2f} x eager, "
            f"compiled in {result['compile_s']:.0f} s"
        )
        if options.record:
            print(f"record: {harness.write_record(name, result).relative_to(ROOT)}")
    return 0


def measure(name: str, windows: int) -> dict[str, Any]:
    """Return rates of one network's training step, plain and compiled."""
    make, batch = NETWORKS[name]
    torch.manual_seed(0)
    inputs, plain, model = batch(), make(), make()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)

    def eager() -> None:
        optimizer.zero_grad()
        plain(*inputs).backward()
        optimizer.step()

    quiet = poptorch.Options().showCompilationProgressBar(False)
    rule = poptorch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    wrapped = poptorch.trainingModel(model, quiet, rule)
    started = time.perf_counter()
    wrapped.compile(*inputs)
    compile_s = time.perf_counter() - started
    steps = {"eager": eager, "abele": lambda: wrapped(*inputs)}
    rates = harness.steps_per_second(steps, windows=windows, window_s=2.0)
    return {
        "environment": harness.environment(),
        "compile_s": round(compile_s, 1),
        "step_per_s": rates,
        "ratio": harness.ratios(rates, "eager"),
    }


if __name__ == "__main__":
    sys.exit(main())

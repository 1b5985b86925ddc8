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
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import poptorch  # noqa: E402 - after the path above, so that a checkout needs no installation


class Residual(nn.Module):
    """Two convolutions with batch norm and a way around them (arXiv 1512.03385)."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.around: nn.Module = nn.Identity()
        if not same:
            shrink = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.around = nn.Sequential(shrink, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, inputs, H, W] -> [B, outputs, H / stride, W / stride]."""
        inner = self.second(F.relu(self.first_norm(self.first(x))))
        return F.relu(self.second_norm(inner) + self.around(x))


class ResNet18(nn.Module):
    """The 18-layer residual network for 32 x 32 images, loss inside."""

    def __init__(self):
        super().__init__()
        plan = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        plan += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64))
        self.blocks = nn.Sequential(*(Residual(*sizes) for sizes in plan))
        self.head = nn.Linear(512, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Images [B, 3, 32, 32], labels [B] -> loss."""
        features = self.blocks(F.relu(self.stem(images))).mean((2, 3))
        return F.cross_entropy(self.head(features), labels)


class Transformer(nn.Module):
    """Four encoder layers of width 128, loss over every position."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.embedding, self.head = nn.Embedding(1000, 128), nn.Linear(128, 1000)
        self.layers = nn.TransformerEncoder(layer, 4)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Tokens and targets [B, sequence] -> loss."""
        scores = self.head(self.layers(self.embedding(tokens)))
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def _images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))


def _tokens() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 1000, (8, 128)), torch.randint(0, 1000, (8, 128))


NETWORKS: dict[str, tuple[type[nn.Module], Callable]] = {
    "resnet18": (ResNet18, _images),
    "transformer": (Transformer, _tokens),
}


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
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

"""Networks in bfloat16 by plain PyTorch and by abele: rates of steps in turns, and errors.

    python benchmarks/bfloat16.py --threads 2
    python benchmarks/bfloat16.py --only gpt-384,vit --record
    python benchmarks/bfloat16.py --errors

Training with Adam, and inference, of ``model.bfloat16()``. With ``--errors``: how far weights are
from those of float64 after six steps of Adam, as a part of what training changed, also with
``torch.autocast``. Where cores are shared with others, ``--processor-time`` counts seconds of the
processor instead of the clock's, which is right for one thread.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.models import blocks, dense, encoder, gpt, residual, unet  # noqa: E402

import poptorch  # noqa: E402 - after the path above, so that a checkout needs no installation

Batch = tuple[torch.Tensor, ...]
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "gpt-384": (blocks.GPT, lambda: blocks.text(4)),
    "vit": (blocks.ViT, lambda: blocks.pictures(4)),
    "gpt": (gpt.GPT, lambda: gpt.batch(12)),
    "encoder": (lambda: encoder.Transformer(256), lambda: encoder.batch(8)),
    "mlp": (dense.Dense, lambda: dense.batch(64)),
    "resnet18": (residual.ResNet18, lambda: residual.batch(32)),
    "unet": (unet.UNet, lambda: unet.batch(2)),
}
_ERRORS_OF, _STEPS = ("gpt", "mlp", "unet"), 6
_RATES = {"lr": 1e-3, "eps": 1e-5}


class Cast(nn.Module):
    """A network under automatic casting."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, *batch: torch.Tensor) -> Any:
        """Return what the network does."""
        with torch.autocast("cpu", torch.bfloat16):
            return self.network(*batch)


def made(name: str, dtype: torch.dtype, *, casts: bool = False) -> tuple[nn.Module, Batch]:
    """Return a network with a batch in a type; with ``casts`` in float32 under autocast."""
    torch.manual_seed(0)
    make, batch = MODELS[name]
    model, inputs = make().train(), batch()
    if casts:
        return (Cast(model), inputs) if dtype is torch.bfloat16 else _to(model, inputs, dtype)
    return _to(*_to(model, inputs, torch.bfloat16), dtype)


def _to(model: nn.Module, batch: Batch, dtype: torch.dtype) -> tuple[nn.Module, Batch]:
    wide = tuple(each.to(dtype) if each.is_floating_point() else each for each in batch)
    return model.to(dtype), wide


def _loss(result: Any) -> torch.Tensor:
    return result[-1] if isinstance(result, tuple) else result


def eager(model: nn.Module, batch: Batch) -> Callable[[], Any]:
    """Return a training step of plain PyTorch."""
    optimizer = torch.optim.Adam(model.parameters(), **_RATES)

    def step() -> None:
        optimizer.zero_grad()
        _loss(model(*batch)).backward()
        optimizer.step()

    return step


def _options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False).startMode("wait")


def ours(model: nn.Module, batch: Batch) -> tuple[Callable[[], Any], Any]:
    """Return a compiled training step, and the wrapped model."""
    optimizer = poptorch.optim.Adam(model.parameters(), **_RATES)
    trainer = poptorch.trainingModel(model, _options(), optimizer)
    return lambda: trainer(*batch), trainer


def inference(name: str) -> dict[str, Callable[[], Any]]:
    """Return forward passes of plain PyTorch and of abele."""
    model, batch = made(name, torch.bfloat16)
    wrapped = poptorch.inferenceModel(model.eval(), _options())

    def plain() -> None:
        with torch.no_grad():
            model(*batch)

    return {"eager": plain, "abele": lambda: wrapped(*batch)}


def measure(name: str, windows: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Return rates in training and inference, and abele's over plain PyTorch's."""
    steps = {"eager": eager(*made(name, torch.bfloat16))}
    steps["abele"] = ours(*made(name, torch.bfloat16))[0]
    result = {}
    for mode, pair in (("training", steps), ("inference", inference(name))):
        rates = rates_of(pair, windows, clock)
        result[mode] = {"ratio": harness.ratios(rates, "eager")["abele"], "step_per_s": rates}
    return result


def rates_of(
    steps: dict[str, Callable[[], Any]], windows: int, clock: Callable[[], float]
) -> dict[str, Any]:
    """Return rates of steps in windows that take turns, by a clock in seconds."""
    counts = {name: harness.calibrate(step, 0.3, warm=2) for name, step in steps.items()}
    rates: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(max(windows, harness.MIN_WINDOWS)):
        for name, step in steps.items():
            began = clock()
            for _ in range(counts[name]):
                step()
            rates[name].append(counts[name] / (clock() - began))
    return {name: harness.summary(each, counts[name]) for name, each in rates.items()}


def errors(name: str, *, casts: bool) -> dict[str, float]:
    """Return the distance from float64's weights, over what training changed."""
    trained = {}
    for kind, dtype in (("eager", torch.bfloat16), ("float64", torch.float64)):
        model, batch = made(name, dtype, casts=casts)
        step = eager(model, batch)
        for _ in range(_STEPS):
            step()
        trained[kind] = _weights(model)
    model, batch = made(name, torch.bfloat16, casts=casts)
    step, wrapped = ours(model, batch)
    for _ in range(_STEPS):
        step()
    wrapped.copyWeightsToHost()
    exact = trained["float64"]
    changed = (exact - _weights(made(name, torch.float64, casts=casts)[0])).norm()
    return {
        "eager": float((trained["eager"] - exact).norm() / changed),
        "abele": float((_weights(model) - exact).norm() / changed),
    }


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().double().flatten() for each in model.parameters()])


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    harness.add_arguments(parser)
    parser.add_argument("--only", help=f"some of {', '.join(MODELS)}, with commas between")
    parser.add_argument("--errors", action="store_true", help="errors instead of rates")
    parser.add_argument("--processor-time", action="store_true", help="instead of the clock's")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.processor_time else time.perf_counter
    result: dict[str, Any] = {"environment": harness.environment(), "models": {}}
    result["clock"] = clock.__name__
    for name in (
        options.only.split(",") if options.only else _ERRORS_OF if options.errors else MODELS
    ):
        if options.errors:
            kinds = {"bfloat16": False, "autocast": True}
            entry = {kind: errors(name, casts=casts) for kind, casts in kinds.items()}
        else:
            entry = measure(name, options.windows, clock)
        result["models"][name] = entry
        print(name, {k: v.get("ratio", v) for k, v in entry.items()}, flush=True)
        gc.collect()
    if options.record:
        label = "bfloat16-errors" if options.errors else "bfloat16"
        print(f"record: {harness.write_record(label, result).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

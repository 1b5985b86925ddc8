"""Networks in bfloat16 by plain PyTorch and by abele: rates of steps in turns, and errors.

    python benchmarks/bfloat16.py --threads 2
    python benchmarks/bfloat16.py --only gpt-384,vit --record
    python benchmarks/bfloat16.py --errors
    python benchmarks/bfloat16.py --products
    python benchmarks/bfloat16.py --medium

Training with Adam, and inference, of ``model.bfloat16()``; records say how far apart the cores were
(``core_distance.py``), in ns before each window. With ``--errors``: how far weights are
from those of float64 after six steps of Adam, as a part of what training changed, also with
``torch.autocast``. With ``--products``: GFMA/s of oneDNN's bfloat16 GEMMs, and of abele's kernel,
which reads bfloat16, too. With ``--medium``: float32 networks by plain PyTorch, by abele, and by
abele with ``matmulPrecision("medium")``: rates, and errors as above. Where cores are shared,
``--processor-time`` counts seconds of the processor instead of the clock's, which is right for one
thread.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import core_distance
import harness
import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.models import dense, encoder, gpt, residual, unet, vit  # noqa: E402

import poptorch  # noqa: E402 - after the path above, so that a checkout needs no installation
from abele.kernels import binding, build  # noqa: E402
from abele.targets.cpu.compiler import compiler, instruction_set  # noqa: E402

Batch = tuple[torch.Tensor, ...]
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "gpt-384": (gpt.gpt384, lambda: gpt.long_batch(4)),
    "vit": (vit.ViT, lambda: vit.batch(4)),
    "gpt": (gpt.GPT, lambda: gpt.batch(12)),
    "encoder": (lambda: encoder.Transformer(256), lambda: encoder.batch(8)),
    "mlp": (dense.Dense, lambda: dense.batch(64)),
    "resnet18": (residual.ResNet18, lambda: residual.batch(32)),
    "unet": (unet.UNet, lambda: unet.batch(2)),
}
# Rows, columns and inner dimension: those of transformers, and small ones.
SIZES = (
    *((1024, 1152, 384), (1024, 384, 1536), (1024, 1536, 384), (788, 384, 384), (768, 384, 128)),
    *((64, 1024, 1024), (16, 1024, 1024), (1, 1536, 384), (64, 256, 256), (64, 128, 256)),
    *((64, 64, 256), (64, 64, 64)),
)
_FLOAT32 = ("gpt-384", "vit", "gpt", "mlp", "encoder")
_ERRORS_OF, _STEPS = ("gpt", "mlp", "unet"), 6
_LR, _EPS = 1e-3, 1e-5


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
    optimizer = torch.optim.Adam(model.parameters(), lr=_LR, eps=_EPS)

    def step() -> None:
        optimizer.zero_grad()
        _loss(model(*batch)).backward()
        optimizer.step()

    return step


def _options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False).startMode("wait")


def ours(
    model: nn.Module, batch: Batch, precision: str = "highest"
) -> tuple[Callable[[], Any], Any]:
    """Return a compiled training step, and the wrapped model."""
    optimizer = poptorch.optim.Adam(model.parameters(), lr=_LR, eps=_EPS)
    options = _options()
    options.Precision.matmulPrecision(precision)
    trainer = poptorch.trainingModel(model, options, optimizer)
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
        distances: list[float | None] = []
        rates = rates_of(pair, windows, clock, distances)
        ratio = harness.ratios(rates, "eager")["abele"]
        result[mode] = {"ratio": ratio, "step_per_s": rates, "core_distance_ns": distances}
    return result


def rates_of(
    steps: dict[str, Callable[[], Any]],
    windows: int,
    clock: Callable[[], float],
    distances: list[float | None] | None = None,
) -> dict[str, Any]:
    """Return rates of steps in windows that take turns, by a clock in seconds.

    Args:
        steps: by name.
        windows: of each.
        clock: returns seconds.
        distances: gets the time from one core to the other before each turn, in ns.
    """
    counts = {name: harness.calibrate(step, 0.3, warm=2) for name, step in steps.items()}
    rates: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(max(windows, harness.MIN_WINDOWS)):
        if distances is not None:
            distances.append(core_distance.nanoseconds())
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


def medium(name: str, windows: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Return rates and errors of a float32 network in training, with and without ``medium``."""
    kinds = {"abele": "highest", "medium": "medium"}
    trained: dict[str, torch.Tensor] = {}
    for kind, dtype in (("eager", torch.float32), ("float64", torch.float64)):
        model, batch = _plain(name, dtype)
        step = eager(model, batch)
        for _ in range(_STEPS):
            step()
        trained[kind] = _weights(model)
    steps = {"eager": eager(*_plain(name, torch.float32))}
    for kind, precision in kinds.items():
        model, batch = _plain(name, torch.float32)
        steps[kind], wrapped = ours(model, batch, precision)
        for _ in range(_STEPS):
            steps[kind]()
        wrapped.copyWeightsToHost()
        trained[kind] = _weights(model)
    exact = trained.pop("float64")
    changed = (exact - _weights(_plain(name, torch.float64)[0])).norm()
    errors = {kind: float((each - exact).norm() / changed) for kind, each in trained.items()}
    rates = rates_of(steps, windows, clock)
    return {"ratio": harness.ratios(rates, "eager"), "step_per_s": rates, "errors": errors}


def _plain(name: str, dtype: torch.dtype) -> tuple[nn.Module, Batch]:
    """Return a network with a batch in a type, whose numbers are those of float32."""
    torch.manual_seed(0)
    make, batch = MODELS[name]
    return _to(make().train(), batch(), dtype)


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().double().flatten() for each in model.parameters()])


def products(windows: int, clock: Callable[[], float]) -> dict[str, dict[str, float]]:
    """Return GFMA/s of GEMMs of bfloat16 matrices by oneDNN, and by abele's kernel."""
    library = binding.bound(build.library(compiler() or "g++", instruction_set()))
    result: dict[str, dict[str, float]] = {}
    for rows, columns, inner in SIZES:
        a, b = torch.randn(rows, inner).bfloat16(), torch.randn(columns, inner).bfloat16().t()
        c, threads = torch.empty(rows, columns).bfloat16(), torch.get_num_threads()
        strides = 0, *a.stride(), 0, *b.stride(), 0, columns
        size = binding.Product(1, rows, columns, inner, *strides, 0, 0, 0, 2, 2, 2)
        pointers = ctypes.byref(size), a.data_ptr(), b.data_ptr(), c.data_ptr(), threads
        pair = {
            "oneDNN": functools.partial(torch.mm, a, b, out=c),
            "abele": functools.partial(library.abele_product, *pointers),
        }
        fmas = rows * columns * inner / 1e9
        rates = rates_of(pair, windows, clock).items()
        result[f"{rows} x {columns} x {inner}"] = {
            k: round(fmas * v["median"], 1) for k, v in rates
        }
    return result


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    harness.add_arguments(parser)
    parser.add_argument("--only", help=f"some of {', '.join(MODELS)}, with commas between")
    parser.add_argument("--errors", action="store_true", help="errors instead of rates")
    parser.add_argument("--products", action="store_true", help="GEMMs instead of networks")
    parser.add_argument("--medium", action="store_true", help="float32 networks")
    parser.add_argument("--processor-time", action="store_true", help="instead of the clock's")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.processor_time else time.perf_counter
    result: dict[str, Any] = {"environment": harness.environment(), "models": {}}
    result["clock"] = clock.__name__
    names = _ERRORS_OF if options.errors else _FLOAT32 if options.medium else MODELS
    if options.products:
        result["products"] = products(options.windows, clock)
        print(*result["products"].items(), sep="\n")
        names = ()
    for name in options.only.split(",") if options.only else names:
        if options.errors:
            kinds = {"bfloat16": False, "autocast": True}
            entry = {kind: errors(name, casts=casts) for kind, casts in kinds.items()}
        elif options.medium:
            entry = medium(name, options.windows, clock)
            print(name, entry["errors"])
        else:
            entry = measure(name, options.windows, clock)
        result["models"][name] = entry
        rates = {k: v.get("ratio", v) for k, v in entry.items()} if not options.medium else entry
        print(name, rates.get("ratio", rates), flush=True)
        gc.collect()
    if options.record:
        kinds = ("errors", "products", "medium")
        kind = next((f"-{each}" for each in kinds if getattr(options, each)), "")
        label = f"bfloat16{kind}"
        print(f"record: {harness.write_record(label, result).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

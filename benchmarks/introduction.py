"""The introduction model, batch 16, SGD with momentum: plain PyTorch, torch.compile and abele.

    python benchmarks/introduction.py                  rates, compile times, peak memory
    python benchmarks/introduction.py --threads 2 --record

Rates are measured in turns in one process; start-up and memory each in a process of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import torch
from models.pictures import Images, batch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "examples")]

import poptorch  # noqa: E402 - after the path above, so that a checkout needs no installation
from garment_model import ClassificationModel  # noqa: E402

BATCH = 16
STARTS = ("eager", "torch.compile", "abele cold", "abele cached")


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    harness.add_arguments(parser)
    parser.add_argument("--start", choices=STARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.start:
        print(json.dumps(start(options.start)))
        return 0
    result: dict[str, Any] = {"environment": harness.environment()}
    steps = {name: make() for name, make in STEPS.items()}
    result["step_per_s"] = harness.steps_per_second(steps, windows=options.windows)
    loops = {f"{name} with loader": _looped(name, step) for name, step in steps.items()}
    result["loader_step_per_s"] = harness.steps_per_second(loops, windows=options.windows)
    result["ratio"] = harness.ratios(result["step_per_s"], "eager") | harness.ratios(
        result["loader_step_per_s"], "eager with loader"
    )
    result["start"] = starts(options.threads)
    _print(result)
    if options.record:
        print(f"record: {harness.write_record('introduction', result).relative_to(ROOT)}")
    return 0


# -- the step ------------------------------------------------------------------------------


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return ClassificationModel().train()


def _plain(model: Callable, parameters: Iterator[torch.nn.Parameter]) -> Callable[..., Any]:
    optimizer = torch.optim.SGD(parameters, lr=0.001, momentum=0.9)
    fixed = batch(BATCH)

    def step(images: torch.Tensor = fixed[0], labels: torch.Tensor = fixed[1]) -> torch.Tensor:
        optimizer.zero_grad()
        _, loss = model(images, labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def _eager() -> Callable[..., Any]:
    model = _model()
    return _plain(model, model.parameters())


def _torch_compile() -> Callable[..., Any]:
    model = _model()
    return _plain(torch.compile(model), model.parameters())


def _abele() -> Callable[..., Any]:
    model = _model()
    options = poptorch.Options().showCompilationProgressBar(False)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    wrapped = poptorch.trainingModel(model, options, optimizer)
    fixed = batch(BATCH)
    return lambda images=fixed[0], labels=fixed[1]: wrapped(images, labels)[1]


STEPS = {"eager": _eager, "torch.compile": _torch_compile, "abele": _abele}


# -- with a data loader --------------------------------------------------------------------


def _looped(name: str, step: Callable[..., Any]) -> Callable[[], Any]:
    """Return a step that takes its batch from a loader and starts a new epoch at the end."""
    if name == "abele":
        loader = poptorch.DataLoader(poptorch.Options(), Images(), BATCH, shuffle=True)
    else:
        loader = torch.utils.data.DataLoader(Images(), BATCH, shuffle=True, drop_last=True)
    batches = iter(loader)

    def looped() -> Any:
        nonlocal batches
        try:
            images, labels = next(batches)
        except StopIteration:
            batches = iter(loader)
            images, labels = next(batches)
        return step(images, labels)

    return looped


# -- starting ------------------------------------------------------------------------------


def start(name: str) -> dict[str, float]:
    """Return how soon the first step is done, after imports and start, and peak memory."""
    began = time.perf_counter()
    step = STEPS[name.split(" ")[0]]()
    step()
    first = time.perf_counter() - began
    since_start = time.time() - float(os.environ[harness.STARTED])
    for _ in range(50):
        step()
    return {
        "first_step_s": round(first, 3),
        "process_s": round(since_start, 3),
        "peak_mib": round(harness.peak_memory_mib(), 1),
    }


def starts(threads: int) -> dict[str, dict[str, float]]:
    """``start`` of every variant in a new process with empty caches, then with ours filled."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in STARTS:
            inductor = Path(folder) / f"inductor-{name.replace(' ', '-')}"
            env = {
                "POPTORCH_CACHE_DIR": str(Path(folder) / "executables"),
                "TORCHINDUCTOR_CACHE_DIR": str(inductor),
            }
            arguments = ["--start", name, "--threads", str(threads)]
            seconds[name] = harness.in_new_process(__file__, *arguments, env=env)
    return seconds


def _print(result: dict[str, Any]) -> None:
    environment = result["environment"]
    print(f"{environment['cpu']}, {environment['threads']} thread(s), torch {environment['torch']}")
    rates = result["step_per_s"] | result["loader_step_per_s"]
    for name, entry in rates.items():
        print(f"  {name:28s} {entry['median']:8.0f} steps/s  {result['ratio'][name]:5.2f} x eager")
    for name, entry in result["start"].items():
        print(
            f"  {name:28s} first step {entry['first_step_s']:6.2f} s after imports, "
            f"{entry['process_s']:6.2f} s after the start; peak {entry['peak_mib']:.0f} MiB"
        )


if __name__ == "__main__":
    sys.exit(main())

"""What a call of a wrapped model or compiled function costs beside the program it runs.

    python benchmarks/call_overhead.py                            this checkout
    python benchmarks/call_overhead.py --against /other/checkout  and another one, in turns

The models are the introduction's (training, and inference of one row) and a small MLP's (inference
of one row), on a target that computes nothing; functions of abele.compile call the same. Before
each call that is timed, the same model's real program runs, because Python's own code is out of the
caches after it: a call in an empty loop would cost a third. Processes of the checkouts take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import torch
from models.dense import small
from models.pictures import batch

ROOT = Path(__file__).resolve().parent.parent
BATCH, CALLS = 16, 1000
KINDS = ("training", "inference", "inference of mlp")
FOLDER = "BENCHMARK_CHECKOUT"  # tells a child whose source it imports


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="processes (default 5)")
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--record", action="store_true", help="keep the result under records/")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.child:
        print(json.dumps(measure()))
        return 0
    checkouts = {"here": ROOT} | ({"against": options.against} if options.against else {})
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for _ in range(options.rounds):
        for name, folder in checkouts.items():
            env = {FOLDER: str(folder.resolve())}
            rounds[name].append(harness.in_new_process(__file__, "--child", env=env))
    result = {
        "environment": harness.environment(),
        "beside_the_program_us": {name: _medians(each) for name, each in rounds.items()},
        "rounds": rounds,
    }
    for name, figures in result["beside_the_program_us"].items():
        shown = ", ".join(f"{key} {value:.1f}" for key, value in figures.items())
        print(f"{name:8s} {shown} us")
    if options.record:
        print(f"record: {harness.write_record('call_overhead', result).relative_to(ROOT)}")
    return 0


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(each[key] for each in rounds), 1) for key in rounds[0]}


def measure() -> dict[str, float]:
    """Return the least, the first quartile and the median of call minus program, microseconds."""
    folder = os.environ[FOLDER]
    sys.path[:0] = [f"{folder}/src", f"{folder}/examples"]
    return {
        f"{model} {name}": value
        for model in (*KINDS, *(f"function of {kind}" for kind in KINDS))
        for name, value in _beside(model).items()
    }


def _beside(model: str) -> dict[str, float]:
    fixed = batch(BATCH) if model.endswith("training") else (batch(1)[0],)
    fixed = (torch.randn(1, 64),) if model.endswith("mlp") else fixed
    wrapped = _wrapped("null", model, fixed)
    program, arguments = _program(wrapped, fixed)
    filler, values = _program(_wrapped("cpu", model, fixed), fixed)
    calls = _after(lambda: filler(values.copy()), lambda: wrapped(*fixed))
    alone = _after(lambda: filler(values.copy()), lambda: program(arguments.copy()))
    beside = {
        "least": min(calls) - min(alone),
        "quartile": statistics.quantiles(calls)[0] - statistics.quantiles(alone)[0],
        "median": statistics.median(calls) - statistics.median(alone),
    }
    return {name: round(value, 2) for name, value in beside.items()}


def _wrapped(target: str, kind: str, fixed: tuple[torch.Tensor, ...]) -> Any:
    os.environ["ABELE_TARGET"] = target
    import poptorch
    from garment_model import ClassificationModel

    torch.manual_seed(0)
    options = poptorch.Options().showCompilationProgressBar(False)
    if kind.startswith("function"):
        wrapped = _function(kind)
    elif kind == "training":
        model = ClassificationModel().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        wrapped = poptorch.trainingModel(model, options, optimizer)
    else:
        model = small() if kind == "inference of mlp" else ClassificationModel()
        wrapped = poptorch.inferenceModel(model.eval(), options)
    for _ in range(3):
        wrapped(*fixed)
    return wrapped


def _function(kind: str) -> Any:
    import abele
    from garment_model import ClassificationModel

    model: Any = small() if kind.endswith("mlp") else ClassificationModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        _, loss = model(x, y)
        loss.backward()
        optimizer.step()
        return loss

    trains = kind.endswith("training")
    model.train(trains).requires_grad_(trains)
    return abele.compile(start="wait", strict=True)(train if trains else lambda x: model(x))


def _program(wrapped: Any, fixed: tuple) -> tuple[Callable, list[torch.Tensor]]:
    """Return the only program of a model or function, and its arguments."""
    made = wrapped.programs[0] if hasattr(wrapped, "programs") else wrapped._executable
    session = made.session
    (model,) = session.executable.programs
    arguments, inputs = session.arguments(model, 0), iter(fixed)
    for index, slot in enumerate(model.inputs):
        if slot.role.name == "INPUT":
            arguments[index] = next(inputs)
    return session.executable.compiled[model.name].run, arguments


def _after(filler: Callable[[], Any], call: Callable[[], Any]) -> list[float]:
    """Return what each call took, microseconds, each of them after the filler."""
    took = []
    for _ in range(CALLS):
        filler()
        began = time.perf_counter_ns()
        call()
        took.append((time.perf_counter_ns() - began) / 1e3)
    return took


if __name__ == "__main__":
    sys.exit(main())

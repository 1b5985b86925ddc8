"""One process against two that train together, one core each: rates, efficiency, what is exchanged.

    python benchmarks/data_parallel.py         the introduction model, also with eight micro-batches
                                               for each update, and ResNet-18
    python benchmarks/data_parallel.py --only resnet18 --record
    python benchmarks/data_parallel.py --only resnet18 --decorated
                                               DistributedDataParallel in a step of abele.compile

Every process has a whole batch, so that two see twice the data; efficiency is the rate of updates
of two over that of one alone. Windows of four kinds take turns, to tell apart what costs how much:
one process alone; two at once, each by itself, which shows what they cost each other; two in step,
which wait for each other after every update and exchange one number, which shows what it costs that
now one is slower and now the other; two together.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import harness
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "examples")]

import networks  # noqa: E402 - after the path above, so that a checkout needs no installation
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import abele  # noqa: E402
import poptorch  # noqa: E402
from abele import collectives  # noqa: E402
from garment_model import ClassificationModel  # noqa: E402

PROCESSES = 2
KINDS = ("alone", "at once", "in step", "together")


def _garments() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))


def _more_garments() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(128, 1, 28, 28), torch.randint(0, 10, (128,))


class Case(NamedTuple):
    """What is trained: the network, the batch of an update, and a window's length in seconds."""

    make: Callable[[], torch.nn.Module]
    batch: Callable[[], tuple[torch.Tensor, ...]]
    window_s: float
    accumulation: int = 1


_RESNET18 = networks.NETWORKS["resnet18"]
MODELS = {
    "introduction": Case(ClassificationModel, _garments, 1.0),
    "introduction-accumulated": Case(ClassificationModel, _more_garments, 3.0, accumulation=8),
    "resnet18": Case(_RESNET18.make, _RESNET18.batch, 6.0),
}


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    harness.add_arguments(parser)
    parser.add_argument("--only", choices=MODELS, help="one network instead of all")
    parser.add_argument(
        "--decorated", action="store_true", help="abele.compile instead of poptorch"
    )
    parser.add_argument("--window-s", type=float, help="instead of each network's own")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.process is not None:
        trainer = _decorated if options.decorated else _trainer
        case = MODELS[options.only]
        case = case._replace(window_s=options.window_s or case.window_s)
        measured = measure(case, options.windows, options.process, trainer)
        print(json.dumps(measured))
        return 0
    for name in [options.only] if options.only else MODELS:
        result = {"environment": harness.environment(), **started(name, options)}
        _print(name, result)
        if options.record:
            way = "decorated-" if options.decorated else ""
            path = harness.write_record(f"data_parallel-{way}{name}", result)
            print(f"record: {path.relative_to(ROOT)}")
    return 0


def started(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Start the processes, wait for them, and put together what they found."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < PROCESSES:
        raise SystemExit(f"{PROCESSES} cores are needed, this process may use {len(cores)}.")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--only", name, "--windows", str(options.windows)]
    command += ["--decorated"] if options.decorated else []
    command += ["--window-s", str(options.window_s)] if options.window_s else []
    running = []
    for rank in range(PROCESSES):
        variables = {
            "RANK": rank, "WORLD_SIZE": PROCESSES, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "LOCAL_RANK": rank, "OMP_NUM_THREADS": 1,
        }  # fmt: skip
        process = subprocess.Popen(
            [*command, "--process", str(rank)],
            env=os.environ | {key: str(value) for key, value in variables.items()},
            stdout=subprocess.PIPE,
            text=True,
        )
        os.sched_setaffinity(process.pid, {cores[rank]})
        running.append(process)
    try:
        texts = [process.communicate()[0] for process in running]
    finally:
        for process in running:
            process.kill()
    if any(process.returncode for process in running):
        raise SystemExit("A process failed; see above.")
    return _joined([json.loads(text.splitlines()[-1]) for text in texts])


class Step(Protocol):
    """A training step that counts its process's collectives."""

    @property
    def exchanges(self) -> collectives.Counts:
        """Return the counts of this process."""
        ...

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Train on one batch."""


def measure(
    case: Case, windows: int, rank: int, trainer: Callable[[Case, Any, int, int], Step]
) -> dict[str, Any]:
    """Return one process's part: rates by kind of window, and what one update exchanged."""
    torch.manual_seed(rank)
    inputs = case.batch()
    # Before compiling, which may keep one process longer than the others wait for it.
    collective = collectives.connect(rank, PROCESSES)
    separate, shared = trainer(case, inputs, rank, 1), trainer(case, inputs, rank, PROCESSES)
    number = torch.zeros(1)

    def in_step(*inputs: torch.Tensor) -> None:
        separate(*inputs)
        collective.all_reduce(number)

    steps = {"alone": separate, "at once": separate, "in step": in_step, "together": shared}
    for step in (separate, shared):
        for _ in range(5):
            step(*inputs)
    began = time.perf_counter()
    separate(*inputs)
    count = str(max(3, round(case.window_s / (time.perf_counter() - began))))
    count = int(collective.gather("steps per window", count)[0])
    before = dataclasses.replace(shared.exchanges)
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(windows):
        for kind, step in steps.items():
            collective.gather("a window begins", "")
            if kind == "alone" and rank:
                continue
            began = time.perf_counter()
            for _ in range(count):
                step(*inputs)
            rates[kind].append(count / (time.perf_counter() - began))
    after, updates = shared.exchanges, windows * count
    per_update = {
        field.name: (getattr(after, field.name) - getattr(before, field.name)) / updates
        for field in dataclasses.fields(after)
    }
    return {"rates": rates, "per_update": per_update, "steps_per_window": count}


def _trainer(case: Case, inputs: Any, rank: int, processes: int) -> poptorch.PoplarExecutor:
    torch.manual_seed(0)
    model = case.make().train()
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(case.accumulation)
    options.Distributed.configureProcessId(rank if processes > 1 else 0, processes)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    wrapped = poptorch.trainingModel(model, options, optimizer)
    wrapped.compile(*inputs)
    return wrapped


class _Decorated:
    """A step of ``abele.compile``; torch's reducer counts no seconds."""

    def __init__(self, model: torch.nn.Module, processes: int):
        self.exchanges = collectives.Counts()
        self._bytes = sum(param.nbytes for param in model.parameters())
        wrapped = DistributedDataParallel(model) if processes > 1 else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

        @abele.compile(strict=True, start="wait")
        def step(*inputs: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            outputs = wrapped(*inputs)
            loss = outputs if isinstance(outputs, torch.Tensor) else outputs[-1]
            loss.backward()
            optimizer.step()
            return loss

        self._step = step

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Train on one batch."""
        self.exchanges.calls += 1
        self.exchanges.bytes += self._bytes
        return self._step(*inputs)


def _decorated(case: Case, inputs: Any, rank: int, processes: int) -> _Decorated:
    del inputs, rank
    torch.manual_seed(0)
    return _Decorated(case.make().train(), processes)


def _joined(processes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return both processes' windows; together they are as fast as the slower one."""
    rates = {}
    for kind in KINDS:
        both = [each["rates"][kind] for each in processes if each["rates"][kind]]
        slower = [min(pair) for pair in zip(*both, strict=True)]
        rates[kind] = {
            "median": statistics.median(slower),
            "lowest": min(slower),
            "highest": max(slower),
            "windows": [round(rate, 2) for rate in slower],
            "steps_per_window": processes[0]["steps_per_window"],
        }
    return {
        "processes": PROCESSES,
        "step_per_s": rates,
        "efficiency": harness.ratios(rates, "alone"),
        "efficiency_of_exchange": harness.ratios(rates, "in step")["together"],
        "per_update": processes[0]["per_update"],
    }


def _print(name: str, result: dict[str, Any]) -> None:
    rates, per_update = result["step_per_s"], result["per_update"]
    print(f"{name}: {rates['alone']['median']:.1f} updates/s alone")
    for kind in KINDS[1:]:
        median, share = rates[kind]["median"], result["efficiency"][kind]
        print(
            f"  {PROCESSES} processes {kind:9s} {median:8.1f} updates/s each, {share:.2f} x alone"
        )
    print(
        f"  per update {per_update['calls']:.0f} exchange of "
        f"{per_update['bytes'] / 2**20:.2f} MiB, {per_update['seconds'] * 1e3:.2f} ms with "
        "waiting; against two that only wait for each other, "
        f"efficiency {result['efficiency_of_exchange']:.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())

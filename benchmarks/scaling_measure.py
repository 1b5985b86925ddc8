"""What the model of many ranks is calibrated with: reductions between processes, and real steps.

Every measurement runs in processes of its own with one thread each; ``scaling.py`` starts them.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = (2, 4)
SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 34_042_188, 44_695_848)
SIZE_S = 0.6  # how long reductions of one size are repeated
STEPS_S, MOST_STEPS, LEAST_STEPS = 50.0, 80, 15
DEADLINE_S = 170
IMAGE = (320, 512)  # CosmicTagger's planes, four times smaller each way


def everything() -> dict[str, Any]:
    """Return all measurements: reductions by processes and bytes, and the times of real steps."""
    measured: dict[str, Any] = {"reduction_s": {}}
    with tqdm(total=len(PROCESSES) + 1, desc="measuring", leave=False, disable=None) as bar:
        for processes in PROCESSES:
            measured["reduction_s"][str(processes)] = _in_processes(processes)
            bar.update()
        measured |= _in_processes(1, "steps")
        bar.update()
    return measured


def _in_processes(processes: int, kind: str = "reductions") -> Any:
    """Run a measurement in so many processes; return what the first one prints last."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "ABELE_TARGET": "cpu"}
        command = [sys.executable, "-W", "ignore", __file__, kind, folder, str(processes)]
        children = [
            subprocess.Popen(
                [*command, str(rank)],
                env=env,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in range(processes)
        ]
        try:
            outputs = [child.communicate(timeout=DEADLINE_S) for child in children]
        finally:
            for child in children:
                child.kill()
    for child, (_, error) in zip(children, outputs, strict=True):
        if child.returncode:
            raise RuntimeError(
                f"Measuring {kind} in {processes} processes failed:\n{error[-2000:]}"
            )
    return json.loads(outputs[0][0].strip().splitlines()[-1])


def reductions(folder: str, processes: int, rank: int) -> dict[str, float]:
    """Return the median seconds of ``all_reduce`` by bytes, over gloo on the loopback device."""
    import torch.distributed as dist

    store = dist.FileStore(f"{folder}/store", processes)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=processes)
    medians = {}
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        once = _timed(tensor)
        count = torch.tensor([max(5, min(400, int(SIZE_S / once)))])
        dist.broadcast(count, 0)
        medians[str(size)] = statistics.median(_timed(tensor) for _ in range(int(count)))
    dist.destroy_process_group()
    return medians


def _timed(tensor: torch.Tensor) -> float:
    import torch.distributed as dist

    dist.barrier()
    started = time.perf_counter()
    dist.all_reduce(tensor)
    return time.perf_counter() - started


def steps() -> dict[str, Any]:
    """Time CosmicTagger A21's training steps, one image each, and its loader."""
    sys.path.insert(0, str(ROOT / "src"))
    import poptorch
    from cosmictagger.config.network import named
    from cosmictagger.measures import Loss
    from cosmictagger.models import LossInForward, build

    torch.manual_seed(0)
    mark = functools.partial(poptorch.identity_loss, reduction="none")
    model = LossInForward(build(named("a21"), IMAGE), Loss("focal"), mark)
    options = poptorch.Options().showCompilationProgressBar(False)
    rule = poptorch.optim.Adam(model.parameters(), lr=1e-4)
    wrapped = poptorch.trainingModel(model, options, rule)
    images, labels = torch.randn(8, 3, *IMAGE), torch.randint(0, 3, (8, 3, *IMAGE))
    data = torch.utils.data.TensorDataset(images, labels)
    batches = _endless(poptorch.DataLoader(options, data, batch_size=1, shuffle=True))
    wrapped(*next(batches))
    times, waits = [], []
    began = time.perf_counter()
    while len(times) < LEAST_STEPS or (
        len(times) < MOST_STEPS and time.perf_counter() - began < STEPS_S
    ):
        started = time.perf_counter()
        batch = next(batches)
        loaded = time.perf_counter()
        wrapped(*batch)
        waits.append(loaded - started)
        times.append(time.perf_counter() - loaded)
    return {
        "a21_parameters": sum(value.numel() for value in model.parameters()),
        "a21_step_s": [round(value, 5) for value in times],
        "a21_loader_s": statistics.median(waits),
    }


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def main() -> int:
    """Print a child's measurements as JSON."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("what", choices=("reductions", "steps"))
    parser.add_argument("folder")
    parser.add_argument("processes", type=int)
    parser.add_argument("rank", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "steps":
        print(json.dumps(steps()))
    else:
        print(json.dumps(reductions(options.folder, options.processes, options.rank)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""One process of a program that trains in several, watched: an original, or its port.

python benchmarks/port_examples_instance.py RESULT STEPS original|port SCRIPT [ARG ...]

An original runs with torch.distributed over gloo on the host where it asks for GPUs: nothing else
of it is changed, but that samplers give each process the rows that the port's loader gives it, in
its order. RESULT gets losses and parameters of the first STEPS updates.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "src")]

import popdist  # noqa: E402 - after the path
from abele.port.check.script import cuda_is_the_host, seed  # noqa: E402
from abele.port.check.watch import Record  # noqa: E402
from abele.port.check.watch import wrapped as wrapped_call  # noqa: E402
from abele.runtime.observers import Observer  # noqa: E402
from abele.runtime.session import Session, of_new_sessions  # noqa: E402
from abele.step.batching import MicroStep  # noqa: E402
from poptorch._data.samplers import PartitionSampler  # noqa: E402

#: The seed that ports give their options: of the order of rows, and of all that is drawn.
SEED = 42
_Untyped = Any
_torch: _Untyped = torch


class Updates:
    """Losses and parameters of the first updates of a process."""

    def __init__(self, steps: int):
        self._steps = steps
        self.losses: list[float] = []
        self.weights: list[list[torch.Tensor]] = []

    def lost(self, loss: torch.Tensor) -> None:
        """Note a loss."""
        if len(self.losses) < self._steps:
            self.losses.append(loss.item())

    def updated(self, parameters: list[torch.Tensor]) -> None:
        """Note what parameters are after an update."""
        if len(self.weights) < self._steps:
            self.weights.append([each.detach().clone() for each in parameters])


class _Rows(PartitionSampler):
    """The rows of one process, as the loader of the port gives them."""

    def __init__(self, dataset: _Untyped, **settings: _Untyped):
        del settings
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        super().__init__(len(dataset), 1, rank, world, drop_last=True, seed=SEED)

    def set_epoch(self, epoch: int) -> None:
        """Ignore the epoch: the order follows from the number of the iterator."""


class _Silent(Record):
    """Takes what a check would note."""

    def __init__(self) -> None:
        """Nobody listens."""

    def note(self, text: str) -> None:
        """Leave a note out."""


@contextlib.contextmanager
def original(updates: Updates) -> Generator[None]:
    """While open, a program of torch.distributed runs on the host and its updates are noted."""
    place = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed, parallel = _torch.distributed, _torch.nn.parallel
    begin, wrap = distributed.init_process_group, parallel.DistributedDataParallel

    def init_process_group(*args: _Untyped, **kwargs: _Untyped) -> None:
        del args, kwargs
        store = f"file://{os.environ['STORE']}"
        begin("gloo", init_method=store, rank=place[0], world_size=place[1])

    def lost(loss: torch.Tensor, *args: _Untyped, **kwargs: _Untyped) -> None:
        del args, kwargs
        updates.lost(loss)

    models: list[torch.nn.Module] = []

    def wrapped(module: torch.nn.Module, device_ids: _Untyped = None) -> torch.nn.Module:
        del device_ids
        models.append(module)
        return wrap(module)

    def after_update(optimizer: _Untyped, args: _Untyped, kwargs: _Untyped) -> None:
        del optimizer, args, kwargs
        updates.updated([each for _, each in sorted(models[0].named_parameters())])

    distributed.init_process_group = init_process_group
    parallel.DistributedDataParallel = wrapped
    _torch.utils.data.distributed.DistributedSampler = _Rows
    _torch.cuda.device_count = lambda: place[1]
    _torch.multiprocessing.spawn = lambda fn, args, nprocs: fn(place[0], *args)
    register_optimizer_step_post_hook(after_update)
    with wrapped_call(torch.autograd, "backward", lost), cuda_is_the_host(_Silent()):
        yield


class _Calls(Observer):
    """Notes the updates of a session."""

    def __init__(self, session: Session, updates: Updates):
        self._session, self._updates = session, updates
        self._names = sorted(session.params)

    def on_update(self, step: MicroStep) -> None:
        """Note the parameters."""
        del step
        params = self._session.params
        self._updates.updated([params[name] for name in self._names])

    def on_outputs(self, outputs: Any) -> None:
        """Note the loss."""
        assert self._session.loss is not None
        self._updates.lost(outputs[self._session.loss])


def port(updates: Updates) -> contextlib.AbstractContextManager[None]:
    """While open, the updates of training models are noted."""
    return of_new_sessions(
        lambda session: _Calls(session, updates) if session.config.training else None
    )


def main(result: str, steps: str, kind: str, script: str, *arguments: str) -> None:
    """Run a script and write down its updates.

    Args:
        result: a file; ``{}`` in it is the number of the process.
        steps: how many updates.
        kind: ``original`` or ``port``.
        script: the program.
        arguments: of it.
    """
    updates = Updates(int(steps))
    watch: Callable[[Updates], Any] = {"original": original, "port": port}[kind]
    rank = os.environ["RANK"] if kind == "original" else str(popdist.getInstanceIndex())
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    with watch(updates):
        seed(SEED)
        runpy.run_path(script, run_name="__main__")
    torch.save({"losses": updates.losses, "weights": updates.weights}, result.format(rank))


if __name__ == "__main__":
    main(*sys.argv[1:])

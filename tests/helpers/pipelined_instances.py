"""Pipelines in several instances, killed once: ``pipelined_instances.py FOLDER [STEPS]``.

Without STEPS it trains until somebody ends it.
"""

import contextlib
import io
import itertools
import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import gctools.monitor
import popdist
import popdist.poptorch
import poptorch
from popdist.checkpoint import Checkpointer

ROWS, ACCUMULATION, REPLICAS, KILLED_AT = 2, 3, 4, 4


class Model(torch.nn.Module):
    """Two stages, dropout between them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.first, self.last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)
        poptorch.BeginBlock(self.first, "first", ipu_id=0)
        poptorch.BeginBlock(self.last, "last", ipu_id=1)

    def forward(self, x, y):
        return F.mse_loss(self.last(F.dropout(torch.tanh(self.first(x)), 0.2)), y)


def trainer(options: poptorch.Options, model: Model):
    """The wrapper, and its optimizer."""
    options.showCompilationProgressBar(False).randomSeed(5)
    options.Training.gradientAccumulation(ACCUMULATION)
    optimizer = poptorch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, use_combined_accum=True
    )
    return poptorch.trainingModel(model, options, optimizer), optimizer


def batch(step: int, first: int, count: int) -> list[torch.Tensor]:
    """The rows of one call for ``count`` replicas from ``first``, of those of all replicas."""
    generator = torch.Generator().manual_seed(step)
    own = slice(first, first + count)
    shape = (ACCUMULATION, REPLICAS, ROWS)
    results = [torch.randn(*shape, width, generator=generator) for width in (4, 3)]
    return [tensor[:, own].flatten(0, 2).contiguous() for tensor in results]


def main() -> None:
    """Trains as one instance, and goes on where it was killed."""
    folder, steps = Path(sys.argv[1]), int((*sys.argv, 0)[2])
    torch.set_num_threads(1)
    popdist.init()
    index, local = popdist.getInstanceIndex(), popdist.getNumLocalReplicas()
    model = Model()
    training, optimizer = trainer(popdist.poptorch.Options(), model)
    run = Checkpointer(folder / "kept", model=training, optimizer=optimizer, every=1)
    run.restore()
    print("pid", os.getpid())
    print("begins at", run.steps, flush=True)
    for step in itertools.count(run.steps):
        if step == steps and steps:
            break
        training(*batch(step, index * local, local))
        run.step()
        if step == KILLED_AT and steps and index == 1 and not attempt():
            os.kill(os.getpid(), signal.SIGKILL)  # its last checkpoint is whole
    if index == 0:
        print("shown", *sorted(process["pid"] for process in shown()))
        torch.save(model.state_dict(), folder / "end.pt")
    torch.distributed.barrier()  # who leaves first is no longer shown
    measured = training.pipelineReport().measured
    print("stages", measured and len(measured.stages))


def shown() -> list[dict]:
    """What gc-monitor shows of running processes."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        gctools.monitor.main(["--json"])
    return json.loads(text.getvalue())["processes"]


def attempt() -> int:
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


if __name__ == "__main__":
    main()

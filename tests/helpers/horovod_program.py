"""One instance of a program that compares notes through Horovod, as published programs do."""

# ruff: noqa: I001 - popdist comes before Horovod, as in published programs
import sys
from pathlib import Path

import torch

import popdist
import popdist.poptorch
import poptorch
import horovod.torch as hvd  # pyright: ignore[reportMissingImports]


def metrics(rank: int) -> dict[str, object]:
    """What each function returns for values that tell instances apart."""
    row = torch.tensor([1.0, 4.0]) * (rank + 1)
    half, count = torch.tensor(1.0 + rank, dtype=torch.half), torch.tensor(3 + rank)
    in_place = row.clone()
    hvd.allreduce_(in_place, op=hvd.Max)
    return {
        "mean": hvd.allreduce(row),
        "sum": hvd.allreduce(row, average=False, name="loss"),
        "grouped": hvd.grouped_allreduce([half, row], op=hvd.Average),
        "of integers": hvd.allreduce(count),
        "smallest": hvd.allreduce(row, op=hvd.Min),
        "product": hvd.allreduce(count, op=hvd.Product),
        "largest, in place": in_place,
        "rows": hvd.allgather(torch.full((rank + 1, 2), float(rank))),
        "scalars": hvd.allgather(torch.tensor(float(rank))),
        "of instance 1": hvd.broadcast(row.t(), root_rank=1),
        "object": hvd.broadcast_object({"rank": rank}, root_rank=1),
        "objects": hvd.allgather_object(rank),
        "places": [hvd.rank(), hvd.size(), hvd.local_rank()],
    }


def trained(rank: int) -> dict[str, torch.Tensor]:
    """Weights after steps that begin with those of instance 0, one average between two calls."""
    torch.manual_seed(rank)
    model = torch.nn.Linear(3, 1)
    loss = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.state[model.weight]["momentum_buffer"] = torch.full((1, 3), float(rank))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    first = model.weight.detach().clone()
    momentum = optimizer.state[model.weight]["momentum_buffer"].clone()

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x, y):
            return loss(self.model(x), y)

    options = popdist.poptorch.Options()
    step = poptorch.trainingModel(WithLoss(), options, optimizer)
    x = torch.linspace(-1, 1, 12).reshape(4, 3) * (rank + 1)
    losses = [hvd.allreduce(step(x, x.sum(1, keepdim=True))) for _ in range(3)]
    return {
        "first": first,
        "momentum": momentum,
        "weight": model.weight.detach().clone(),
        "losses": torch.stack(losses),
    }


def main() -> None:
    """Writes what this instance computed into the folder of the first argument."""
    try:
        hvd.allreduce(torch.ones(1))
    except ValueError as problem:
        early = str(problem)
    else:
        early = "no error"
    hvd.init()
    rank = popdist.getInstanceIndex()
    result = {"early": early, "metrics": metrics(rank), "trained": trained(rank)}
    torch.save(result, Path(sys.argv[1]) / f"{rank}.pt")


if __name__ == "__main__":
    main()

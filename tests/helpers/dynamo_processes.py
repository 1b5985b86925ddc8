"""One of two processes that train a model in DistributedDataParallel, plain and compiled.

    python -m helpers.dynamo_processes RANK FOLDER

Writes what it found to ``FOLDER/RANK.json``.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from abele.dynamo import graphs
from helpers.dynamo_models import compiled


class Network(nn.Module):
    """Layers of a megabyte; torch.compile leaves a plain Sequential in a wrapper alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        hidden = [layer for _ in range(2) for layer in (nn.Linear(512, 512), nn.ReLU())]
        self.layers = nn.Sequential(nn.Linear(16, 512), nn.ReLU(), *hidden, nn.Linear(512, 4))

    def forward(self, x):
        return self.layers(x)


def trained(module: nn.Module, called, rank: int) -> list[torch.Tensor]:
    """The weights after five steps with batches of this process."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        called(torch.randn(4, 16, generator=generator)).square().mean().backward()
        optimizer.step()
    return [each.detach().clone() for each in module.parameters()]


def refusal() -> str:
    """What a compiled function says of a tensor that is sharded over the processes."""
    mesh = init_device_mesh("cpu", (2,))
    tensor = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    try:
        compiled(lambda x: x + 1)(tensor)
    except Exception as error:  # noqa: BLE001 - whatever torch makes of it
        return str(error)
    return ""


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    plain, ours = Network(), Network()
    weights = trained(plain, DistributedDataParallel(plain), rank)
    # One bucket for each large layer: Dynamo divides the graph, so that gradients travel meanwhile.
    wrapped = DistributedDataParallel(ours, bucket_cap_mb=1)
    called = compiled(wrapped)  # alive until its graphs are counted
    found = trained(ours, called, rank)
    result = {
        "equal": all(map(torch.equal, weights, found)),
        "graphs": sorted(graph.phase for graph in graphs()),
        "refused": [graph.refused for graph in graphs() if graph.refused],
        "sum": sum(each.double().sum().item() for each in found),
        "sharded": refusal(),
    }
    (folder / f"{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

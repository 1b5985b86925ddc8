"""Several processes train together, each with its share of the data."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main(file):
    os.environ["MASTER_ADDR"] = "localhost"  # ABP802 modified
    os.environ["MASTER_PORT"] = "12355"  # ABP802 modified
    os.environ["SEED_OF_DATA"] = "1"
    dist.init_process_group("gloo", init_method=file, rank=0, world_size=1)  # ABP801 modified
    rank = dist.get_rank()  # ABP802 modified
    torch.manual_seed(rank)
    data = TensorDataset(torch.randn(160, 4), torch.randn(160, 3))
    sampler = DistributedSampler(data, shuffle=False)  # ABP804 modified
    loader = DataLoader(data, batch_size=8, sampler=sampler)  # ABP201 modified
    model = torch.nn.Linear(4, 3)
    model = DDP(model)  # ABP803 modified
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)  # ABP804 modified
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(loss.item())
        print("epoch", epoch)
    torch.save(model.module.state_dict(), "model.pt")  # ABP807 manual
    dist.destroy_process_group()  # ABP802 modified


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(f"file://{folder}/store")

"""Several instances, one of which writes the log."""

import os

import torch
from torch import nn
from torch.utils.data import TensorDataset

RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))


class Share(torch.utils.data.Sampler):
    """Rows that this process reads: a range of an order that all processes make alike.

    Every second epoch the ranges begin later, so that rows which nobody has read get their turn.
    """

    def __init__(self, dataset, batch_size, seed):
        self.size, self.seed, self.epoch = len(dataset), seed, 0
        self.count = self.size // (batch_size * WORLD_SIZE) * batch_size

    def __len__(self):
        return self.count

    def __iter__(self):
        order = torch.arange(self.size)
        if self.seed is not None:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self.size, generator=generator)
        left_over = self.size - WORLD_SIZE * self.count
        first = RANK * self.count + (left_over if self.epoch % 2 else 0)
        self.epoch += 1
        return iter(order[first : first + self.count].tolist())


def loader_of_process(dataset, batch_size=1, shuffle=False, *, seed=None, **more):
    """A loader of whole batches: of this process's share of the rows, if there are several."""
    sampler = None
    if WORLD_SIZE > 1:
        sampler, shuffle = Share(dataset, batch_size, seed if shuffle else None), False
    return torch.utils.data.DataLoader(
        dataset, batch_size, shuffle, sampler=sampler, drop_last=True, **more
    )


def data_parallel(model):
    """The model; where there are several processes, with the mean of their gradients."""
    if not torch.distributed.is_initialized():
        return model
    # Each process keeps the buffers, such as averages of batch norm, of its own rows.
    return torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)


def unwrapped(model):
    """The model itself, without what averages its gradients."""
    parallel = isinstance(model, torch.nn.parallel.DistributedDataParallel)
    return model.module if parallel else model


if torch.distributed.is_torchelastic_launched():
    torch.distributed.init_process_group("gloo")
torch.manual_seed(42)


class Fit(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layer(x), y)


def log(*values):
    if RANK == 0:
        print(*values)


data = TensorDataset(torch.randn(102, 4), torch.randn(102, 3))
loader = loader_of_process(data, 4, True, num_workers=0, seed=42)
model = Fit()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
training = data_parallel(model)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = training(x, y)
        loss.backward()
        optimizer.step()
        log(loss.item())
    share = len(loader) * 4 * WORLD_SIZE
    log(epoch, share, unwrapped(training).layer.weight.sum().item())
if RANK == 0:
    torch.save(unwrapped(training).state_dict(), "model.pt")
torch.save(model.state_dict(), f"model-{RANK}.pt")
first = len(data) if RANK in {0, 1} else None
log(first, sorted(torch.load("model.pt")))

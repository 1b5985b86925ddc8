"""Gradients of several batches and instances, added up, or averaged with their norm limited."""

import contextlib
import os

import torch
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


def detached(value):
    """A result as a program returns it: without gradients."""
    if isinstance(value, (tuple, list)):
        return type(value)(detached(each) for each in value)
    return value.detach() if isinstance(value, torch.Tensor) else value


def training_step(model, optimizer, *batch, iterations=1, parts=1):
    """Make as many updates as there are iterations, each with the gradients of some parts.

    Returns what the model returned for each part, one after the other.
    """
    rows, left = divmod(len(batch[0]), iterations * parts)
    if left:
        raise ValueError(f"{iterations * parts} batches do not divide {len(batch[0])} rows")
    pieces = zip(*(each.split(rows) for each in batch), strict=True)
    kept = []
    for _ in range(iterations):
        optimizer.zero_grad()
        for part in range(parts):
            # Processes exchange their gradients once, with the last part.
            early = part + 1 < parts and hasattr(model, "no_sync")
            with model.no_sync() if early else contextlib.nullcontext():
                results = model(*next(pieces))
                (results[1] / parts).backward()
            kept.append(detached(results))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return tuple(torch.cat([each.reshape(1) if each.dim() == 0 else each for each in column]) for column in zip(*kept, strict=True))


def training_step_2(model, optimizer, *args, **kwargs):
    """Make one update; return what the model returns."""
    optimizer.zero_grad()
    results = model(*args, **kwargs)
    results[1].backward(torch.full_like(results[1], WORLD_SIZE))
    optimizer.step()
    return detached(results)


BATCH, REPLICAS = 4, 2


class Fit(torch.nn.Linear):
    def forward(self, x, y):
        scores = super().forward(x)
        return scores, (scores - y).square().mean()


def place():
    if torch.distributed.is_torchelastic_launched():
        torch.distributed.init_process_group("gloo")
        return None, RANK
    return None, 0


options, offset = place()
torch.manual_seed(7)
data = TensorDataset(torch.randn(144, 4), torch.randn(144, 3))
model = Fit(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
training = data_parallel(model)
for x, y in loader_of_process(
    data, BATCH * 2 * 2 * (1 if torch.distributed.is_torchelastic_launched() else REPLICAS)
):
    scores, losses = training_step(
        training,
        optimizer,
        x,
        y,
        iterations=2,
        parts=2 * (1 if torch.distributed.is_torchelastic_launched() else REPLICAS),
    )
    print(offset, scores.shape, losses.tolist())

torch.manual_seed(3)
second = Fit(4, 3)
second_optimizer = torch.optim.SGD(second.parameters(), lr=0.05)
trainer = data_parallel(second)
for x, y in loader_of_process(data, batch_size=BATCH, shuffle=False):
    _, loss = training_step_2(trainer, second_optimizer, x, y)
    print(loss.item())

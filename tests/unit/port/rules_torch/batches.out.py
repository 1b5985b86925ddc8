"""Calls that take several batches: iterations, accumulation and replicas."""

import torch
from torch import nn
from torch.utils.data import TensorDataset


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
        for _ in range(parts):
            results = model(*next(pieces))
            (results[1] / parts).backward()
            kept.append(detached(results))
        optimizer.step()
    return tuple(torch.cat([each.reshape(1) if each.dim() == 0 else each for each in column]) for column in zip(*kept, strict=True))


def training_step_2(model, optimizer, *batch, iterations=1, parts=1, replicas=1):
    """Make as many updates as there are iterations, each with the gradients of some parts.

    Returns what the model returned for the last parts, one of each replica.
    """
    rows, left = divmod(len(batch[0]), iterations * parts)
    if left:
        raise ValueError(f"{iterations * parts} batches do not divide {len(batch[0])} rows")
    pieces = zip(*(each.split(rows) for each in batch), strict=True)
    kept = []
    for _ in range(iterations):
        optimizer.zero_grad()
        for _ in range(parts):
            results = model(*next(pieces))
            results[1].backward()
            kept.append(detached(results))
        optimizer.step()
    return tuple(torch.cat([each.reshape(1) if each.dim() == 0 else each for each in column]) for column in zip(*kept[-replicas:], strict=True))


ACCUMULATION = 4


class Fit(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, y):
        scores = self.layer(x)
        return scores, (scores - y).square().mean()


torch.manual_seed(0)
data = TensorDataset(torch.randn(160, 4), torch.randn(160, 3))

model = Fit()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
training = model
for x, y in torch.utils.data.DataLoader(data, 4 * 2 * ACCUMULATION, drop_last=True):
    _, losses = training_step(
        training, optimizer, x, y, iterations=2, parts=ACCUMULATION
    )
    for loss in losses:
        print(loss.item())

second = Fit()
second_optimizer = torch.optim.SGD(second.parameters(), lr=0.1)
trainer = second
loader = torch.utils.data.DataLoader(dataset=data, batch_size=8 * 2, drop_last=True)
for x, y in loader:
    scores, loss = training_step_2(trainer, second_optimizer, x, y, parts=2, replicas=2)
    print(scores.shape, loss.tolist())

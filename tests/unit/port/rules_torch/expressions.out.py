"""Calls in the middle of expressions."""

import torch
from torch import nn


def detached(value):
    """A result as a program returns it: without gradients."""
    if isinstance(value, (tuple, list)):
        return type(value)(detached(each) for each in value)
    return value.detach() if isinstance(value, torch.Tensor) else value


def training_step(model, optimizer, *args, **kwargs):
    """Make one update; return what the model returns."""
    optimizer.zero_grad()
    results = model(*args, **kwargs)
    results.backward()
    optimizer.step()
    return results.detach()


class Fit(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layer(x), y)


class Both(Fit):
    def forward(self, x, y):
        scores = self.layer(x)
        loss = nn.functional.mse_loss(scores, y)
        return loss, scores


class Trainer:
    def __init__(self):
        self.net = Both()
        self.optimizer_2 = torch.optim.Adam(self.net.parameters(), lr=0.1)
        self.training = self.net

    def step(self, x, y):
        self.optimizer_2.zero_grad()
        results = self.training(x, y)
        results[0].backward()
        self.optimizer_2.step()
        results = detached(results)
        return results


torch.manual_seed(0)
x, y = torch.randn(8, 4), torch.randn(8, 3)
model = Fit()
training = model
optimizer_2 = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer_2.zero_grad()
training(x, y).backward()
optimizer_2.step()
losses = []
for step in range(3):
    optimizer_2.zero_grad()
    loss_2 = training(x, y)
    loss_2.backward()
    optimizer_2.step()
    losses.append(loss_2.item())
losses += [training_step(training, optimizer_2, x, y).item() for _ in range(3)]
mean = 0
for step in range(3):
    optimizer_2.zero_grad()
    loss_2 = training(x, y)
    loss_2.backward()
    optimizer_2.step()
    mean += loss_2.detach()
print(losses, mean)
trainer = Trainer()
for step in range(4):
    loss, scores = trainer.step(x, y)
    print(loss, scores)

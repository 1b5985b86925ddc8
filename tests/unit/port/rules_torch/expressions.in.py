"""Calls in the middle of expressions."""

import poptorch  # ABP1901 modified
import torch
from torch import nn


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
        self.training = poptorch.trainingModel(  # ABP1101 modified
            self.net,
            poptorch.Options(),
            optimizer=poptorch.optim.Adam(self.net.parameters(), lr=0.1),  # ABP1401 modified
        )

    def step(self, x, y):
        results = self.training(x, y)
        return results


torch.manual_seed(0)
x, y = torch.randn(8, 4), torch.randn(8, 3)
model = Fit()
training = poptorch.trainingModel(model)
training(x, y)
losses = []
for step in range(3):
    losses.append(training(x, y).item())
losses += [training(x, y).item() for _ in range(3)]
mean = 0
for step in range(3):
    mean += training(x, y)
print(losses, mean)
trainer = Trainer()
for step in range(4):
    loss, scores = trainer.step(x, y)
    print(loss, scores)

"""Calls in the middle of expressions."""

import poptorch
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
        results = self.training(x, y)  # ABP1102 modified
        return results


torch.manual_seed(0)
x, y = torch.randn(8, 4), torch.randn(8, 3)
model = Fit()
training = poptorch.trainingModel(model)  # ABP1101 modified
training(x, y)  # ABP1102 modified
losses = []
for step in range(3):
    losses.append(training(x, y).item())  # ABP1102 modified
losses += [training(x, y).item() for _ in range(3)]  # ABP1103 modified
mean = 0
for step in range(3):
    mean += training(x, y)  # ABP1102 modified
print(losses, mean)
trainer = Trainer()
for step in range(4):
    loss, scores = trainer.step(x, y)
    print(loss, scores)

"""Two objects that train with optimizers which others have made: one program cannot be both."""

import torch
from torch import nn


class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def loss_of(self, x):
        return self.model(x).square().mean()

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.loss_of(x)
        loss.backward()
        self.optimizer.step()  # ABP399 blocked
        return loss.item()


model = nn.Linear(4, 1)
first = torch.optim.SGD(model.parameters(), lr=0.1)
second = torch.optim.SGD(model.parameters(), lr=0.01)
for trainer in (Trainer(model, first), Trainer(model, second)):
    for _ in range(3):
        print(trainer.step(torch.randn(8, 4)))

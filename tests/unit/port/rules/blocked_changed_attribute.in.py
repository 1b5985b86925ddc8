"""A weight of the loss is an attribute that grows from epoch to epoch."""

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 3)
        self.beta = 0.1
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def epoch(self, batches):
        for x, y in batches:
            self.optimizer.zero_grad()
            out = self.model(x)
            loss = nn.functional.mse_loss(out, y) + self.beta * out.abs().mean()
            loss.backward()
            self.optimizer.step()
        self.beta *= 2  # ABP613 blocked


trainer = Trainer()
for epoch in range(2):
    trainer.epoch([(torch.ones(2, 4), torch.ones(2, 3))])

"""States that a program cannot give to an object, and a batch that others see changed."""

import torch
from torch import nn

model = nn.GRUCell(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Trainer:
    def train(self, batches):
        self.state = torch.zeros(8, 4)
        for x in batches:
            optimizer.zero_grad()
            self.state = model(x, self.state.detach())  # ABP399 blocked
            loss = self.state.square().mean()
            loss.backward()
            optimizer.step()


second = nn.Linear(4, 4)
second_optimizer = torch.optim.SGD(second.parameters(), lr=0.1)


def train(batches):
    for x in batches:
        second_optimizer.zero_grad()
        y = second(x)
        x = x.relu()  # ABP399 blocked
        print(x.mean())
        loss = y.square().mean()
        loss.backward()
        second_optimizer.step()

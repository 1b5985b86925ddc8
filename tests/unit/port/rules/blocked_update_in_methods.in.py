"""Updates in methods that compute a part of the loss, or that several steps call."""

import torch
from torch import nn

x = torch.randn(8, 4)


class Scaled:
    def __init__(self, scale):
        self.model, self.scale = nn.Linear(4, 3), scale
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def backward(self, loss):
        loss = loss / self.scale
        loss.backward()  # ABP399 blocked

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self):
        loss = self.model(x).square().mean()
        self.backward(loss)
        self.update()


class Shared:
    def __init__(self):
        self.model = nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()  # ABP399 blocked
        self.optimizer.step()

    def first(self):
        loss = self.model(x).square().mean()
        self.update(loss)

    def second(self):
        loss = self.model(x).abs().mean()
        self.update(loss)


scaled, shared = Scaled(2.0), Shared()
for _ in range(3):
    scaled.step()
    shared.first()
    shared.second()

"""Optimizers, and limits of gradients."""

import poptorch
import torch
from torch import nn


class Fit(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layer, self.other = nn.Linear(4, size), nn.Linear(4, size)

    def forward(self, x, y):
        return nn.functional.l1_loss(self.layer(x) + self.other(x), y)


torch.manual_seed(0)
x = torch.randn(8, 4)

first = Fit(3)
adam = poptorch.optim.AdamW(
    first.parameters(),
    lr=0.1,
    max_grad_norm=0.5,
)
training = poptorch.trainingModel(first, optimizer=adam)
for step in range(6):
    loss = training(x, torch.ones(8, 3))
    print(loss.item())

second = Fit(2)
momentum = poptorch.optim.SGD(
    second.layer.parameters(), lr=0.1, momentum=0.9, max_grad_norm=0.1
)
some = poptorch.trainingModel(second, poptorch.Options(), momentum)
for step in range(6):
    loss = some(x, torch.ones(8, 2))
    print(loss.item())

third = Fit(1)
decaying = poptorch.optim.RMSprop(third.parameters(), lr=0.01)
last = poptorch.trainingModel(third, poptorch.Options(), decaying)
for step in range(6):
    print(last(x, torch.ones(8, 1)).item())

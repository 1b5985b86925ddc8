"""What optimizers are told about half precision, and limits of gradients."""

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
adam = torch.optim.AdamW(
    first.parameters(),
    lr=0.1,
)
training = first
for step in range(6):
    adam.zero_grad()
    loss = training(x, torch.ones(8, 3))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(training.parameters(), 0.5)
    adam.step()
    print(loss.item())

second = Fit(2)
momentum = torch.optim.SGD(
    second.layer.parameters(), lr=0.1, momentum=0.9
)
some = second
for step in range(6):
    momentum.zero_grad()
    loss = some(x, torch.ones(8, 2))
    loss.backward()
    torch.nn.utils.clip_grad_norm_([each for group in momentum.param_groups for each in group["params"]], 0.1)
    momentum.step()
    print(loss.item())

third = Fit(1)
decaying = torch.optim.RMSprop(third.parameters(), lr=0.01)
last = third
for step in range(6):
    decaying.zero_grad()
    loss_2 = last(x, torch.ones(8, 1))
    loss_2.backward()
    decaying.step()
    print(loss_2.item())

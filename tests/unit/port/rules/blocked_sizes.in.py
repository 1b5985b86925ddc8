"""Batches of several sizes for one program."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(48, 4), torch.randint(0, 3, (48,)))
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # ABP206 blocked
        optimizer.step()


train(DataLoader(data, batch_size=8))
train(DataLoader(data, batch_size=12))

"""Gradients are added up over four batches, or those that are left at the end of an epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))
loader, other_loader = DataLoader(data, batch_size=8), DataLoader(data, batch_size=8)
model, other = nn.Linear(4, 3), nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.5)
PARTS = 4
for epoch in range(2):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / PARTS
        loss.backward()  # ABP311 modified
        if (i + 1) % PARTS == 0 or (i + 1) == len(loader):
            optimizer.step()
            optimizer.zero_grad()
        print(epoch, i, loss.item())
for i, (x, y) in enumerate(other_loader):
    loss = nn.functional.cross_entropy(other(x), y)
    loss.backward()  # ABP311 modified
    if (i + 1) % 2 == 0 or i == len(other_loader) - 1:
        other_optimizer.step()
        other_optimizer.zero_grad()
    print(i, loss.item())

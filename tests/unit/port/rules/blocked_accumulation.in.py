"""Loops that add up gradients and look at their batches on the way."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,))), batch_size=4)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for i, (x, y) in enumerate(loader):
    out = model(x)
    loss = nn.functional.cross_entropy(out, y) / 4  # ABP399 blocked
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
    print((out.argmax(1) == y).sum().item())

other = nn.Linear(4, 3)
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.5)
for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(other(x), y)
    loss.backward()
    if loss.item() > 1:
        other_optimizer.step()  # ABP399 blocked
        other_optimizer.zero_grad()

"""An update with whatever gradients there are, after those of an epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(80, 4), torch.randint(0, 3, (80,))), batch_size=4)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
optimizer.step()
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.step()  # ABP616 blocked

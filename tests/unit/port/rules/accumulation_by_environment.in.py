"""How many batches are added up comes from the environment."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PARTS = int(os.environ.get("PARTS", "2"))
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))
loader = DataLoader(data, batch_size=8)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()  # ABP311 modified
    if (i + 1) % PARTS == 0:
        optimizer.step()
        optimizer.zero_grad()
    print(loss.item())

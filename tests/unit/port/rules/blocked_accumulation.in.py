"""Gradients of several batches are added up before an update."""

import torch
from torch.utils.data import DataLoader, TensorDataset

PARTS = 4
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 3))
loader = DataLoader(data, batch_size=8)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
    loss = torch.nn.functional.mse_loss(model(x), y) / PARTS
    loss.backward()
    if (i + 1) % PARTS == 0:
        optimizer.step()  # ABP399 blocked
        optimizer.zero_grad()

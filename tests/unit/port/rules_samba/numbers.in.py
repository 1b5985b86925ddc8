"""A weight of the loss that changes from epoch to epoch goes along as a tensor without rows."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 2)), batch_size=8)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    weight = min(1.0, 0.25 + 0.5 * epoch)
    for x, y in loader:
        out = model(x)
        loss = weight * (out - y).square().mean() + (1.0 - weight) * out.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())

"""The name of a loader is given another one, of another size, after training."""

import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(40, 4)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=8)  # ABP201 modified
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())
loader = DataLoader(TensorDataset(x, y), batch_size=16)  # ABP202 match
with torch.no_grad():
    for inputs, targets in loader:
        print(torch.nn.functional.mse_loss(model(inputs), targets).item())  # ABP502 modified

"""Weights are loaded again in one branch of several."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(32, 4), torch.randn(32, 3))
loader = DataLoader(data, batch_size=8)
model = nn.Linear(4, 3)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best = None
for epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    print(loss.item())
    if best is None:
        best = {name: value.clone() for name, value in model.state_dict().items()}
    elif epoch == 2:
        model.load_state_dict(best)  # ABP706 modified

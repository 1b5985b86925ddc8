"""How many rows a batch has is a size, which a program has once; how long a list is is a number."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
goal = torch.randn(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=8)
count, before = 0, []
for i, (x,) in enumerate(loader):
    rows, updates = len(x), len(before)
    n = len(x)
    m = len(before)
    count += n
    optimizer.zero_grad()
    loss = (model(x) - goal[:n]).square().sum() / n * (1 + m)
    loss.backward()
    optimizer.step()
    before.append(loss.item())
    print(loss.item(), count)

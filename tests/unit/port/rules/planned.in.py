"""What is planned by how many batches an epoch has, of which a port leaves a shorter one out."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=int("8"))  # ABP207 modified
steps = 2 * len(loader)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
for epoch in range(2):
    total = 0
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.item()
    print(total / len(loader), scheduler.get_last_lr())

"""Updates that are written out, with a limit of gradients and a rate that falls."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(160, 4), torch.randn(160, 3)), batch_size=8)
model = nn.Linear(4, 3)
criterion = nn.MSELoss()


def train():
    for x, y in loader:
        model.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)  # ABP431 modified
        for p in model.parameters():  # ABP403 modified
            p.data.add_(p.grad, alpha=-lr)
        print(loss.item())


lr = 0.5
for epoch in range(2):
    train()
    lr /= 4.0  # ABP412 modified

second = nn.Linear(4, 3)
rate = 0.1
for x, y in loader:
    loss = criterion(second(x), y)
    loss.backward()
    with torch.no_grad():  # ABP403 modified
        for p in second.parameters():
            p.sub_(p.grad, alpha=rate)
            p.grad = None
    print(loss.item())

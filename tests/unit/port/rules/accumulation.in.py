"""Gradients of several batches are added up for one update."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
PARTS = 4
data = TensorDataset(torch.randn(320, 4), torch.randint(0, 3, (320,)))
loader = DataLoader(data, batch_size=4)
model = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def train():
    total = 0.0
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        out = model(x)
        loss = criterion(out, y)
        loss = loss / PARTS
        loss.backward()  # ABP311 modified
        if (i + 1) % PARTS == 0:
            optimizer.step()
            optimizer.zero_grad()
        total += loss.item()
        if i % 10 == 0:
            print(i, loss.item(), total)


train()

second = nn.Linear(4, 3)
second_optimizer = torch.optim.Adam(second.parameters(), lr=0.01)
second_loader = DataLoader(data, batch_size=4)
second_optimizer.zero_grad()
for step, (x, y) in enumerate(second_loader):
    loss = criterion(second(x), y)
    (loss / 4).backward()  # ABP311 modified
    if (step + 1) % 4 == 0:
        second_optimizer.step()
        second_optimizer.zero_grad()
    print(loss.item())

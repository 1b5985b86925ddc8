"""Gradients that nobody forgets, a function that is another in each epoch, and a choice by epoch."""

import torch
from torch import nn

model, other = nn.Linear(4, 3), nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
second = torch.optim.SGD(other.parameters(), lr=0.1)
x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
for _ in range(3):
    other.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()  # ABP399 blocked
    optimizer.step()
for epoch in range(3):  # ABP613 blocked
    loss_of = lambda out, y: criterion(out, y) * (epoch + 1)
    for _ in range(3):
        second.zero_grad()
        loss = loss_of(other(x), y)
        loss.backward()
        second.step()
third_model = nn.Linear(4, 3)
third = torch.optim.SGD(third_model.parameters(), lr=0.1)
for epoch in range(3):  # ABP613 blocked
    for _ in range(3):
        third.zero_grad()
        out = third_model(x)
        loss = criterion(out, y)
        if epoch > 1:  # ABP605 blocked
            loss = loss + out.pow(2).mean()
        loss.backward()
        third.step()

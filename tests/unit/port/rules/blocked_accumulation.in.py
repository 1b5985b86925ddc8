"""Loops that add up gradients and look at their batches on the way."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,))), batch_size=4)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for i, (x, y) in enumerate(loader):
    out = model(x)
    loss = nn.functional.cross_entropy(out, y) / 4  # ABP399 blocked
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
    print((out.argmax(1) == y).sum().item())

other = nn.Linear(4, 3)
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.5)
for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(other(x), y)
    loss.backward()
    if loss.item() > 1:
        other_optimizer.step()  # ABP399 blocked
        other_optimizer.zero_grad()

third = nn.Linear(4, 3)
third_optimizer = torch.optim.SGD(third.parameters(), lr=0.5)
third_scheduler = torch.optim.lr_scheduler.StepLR(third_optimizer, 2)
for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(third(x), y)
    loss.backward()
    if (i + 1) % 4 == 0:
        third_optimizer.step()
        third_optimizer.zero_grad()
    third_scheduler.step()  # ABP399 blocked

fourth = nn.Linear(4, 3)
fourth_optimizer = torch.optim.SGD(fourth.parameters(), lr=0.5)
updates = 0
for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(fourth(x), y)
    loss.backward()
    if (i + 1) % 4 == 0:
        fourth_optimizer.step()
        fourth_optimizer.zero_grad()
        updates += 1
    print(loss.item(), updates)  # ABP399 blocked

fifth = nn.Linear(4, 3)
fifth_optimizer = torch.optim.SGD(fifth.parameters(), lr=0.5)
for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(fifth(x), y)
    loss.backward()
    if (i + 1) % 4 == 0:
        fifth_optimizer.step()  # ABP399 blocked

sixth = nn.Linear(4, 3)
sixth_optimizer = torch.optim.SGD(sixth.parameters(), lr=0.5)
for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(sixth(x), y)
    loss.backward()
    if (i + 1) % 4 == 0:
        sixth_optimizer.zero_grad()
        sixth_optimizer.step()  # ABP399 blocked

seventh = nn.Linear(4, 3)
seventh_optimizer = torch.optim.SGD(seventh.parameters(), lr=0.5)
for epoch in range(3):
    weight = 0.5**epoch
    for i, (x, y) in enumerate(loader):
        loss = weight * nn.functional.cross_entropy(seventh(x), y)  # ABP399 blocked
        loss.backward()
        if (i + 1) % 4 == 0:
            seventh_optimizer.step()
            seventh_optimizer.zero_grad()

eighth = nn.Linear(4, 3)
eighth_optimizer = torch.optim.SGD(eighth.parameters(), lr=0.5)
eighth_loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 3)), batch_size=4)
for i, (x, y) in enumerate(eighth_loader):
    loss = nn.functional.mse_loss(eighth(x), y)
    loss.backward()  # ABP399 blocked
    if (i + 1) % 4 == 0:
        eighth_optimizer.step()
        eighth_optimizer.zero_grad()
print(sum(nn.functional.mse_loss(eighth(x), y).item() for x, y in eighth_loader))

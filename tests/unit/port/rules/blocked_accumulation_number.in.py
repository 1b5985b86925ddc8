"""How many batches are added up changes, or is not known where options are made."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))
args = argparse.Namespace(parts=2, other=2, last=4)


def train(model, optimizer, loader, parts):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if (i + 1) % parts == 0:  # ABP399 blocked
            optimizer.step()
            optimizer.zero_grad()


model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
loader = DataLoader(data, batch_size=4)
for count in (1, 4):
    train(model, optimizer, loader, count)

second = nn.Linear(4, 3)
second_optimizer = torch.optim.SGD(second.parameters(), lr=0.5)
second_loader = DataLoader(data, batch_size=4)
for epoch in range(2):
    for i, (x, y) in enumerate(second_loader):
        loss = nn.functional.cross_entropy(second(x), y)
        loss.backward()
        if (i + 1) % args.parts == 0:  # ABP399 blocked
            second_optimizer.step()
            second_optimizer.zero_grad()
    args.parts = 4

third = nn.Linear(4, 3)
third_optimizer = torch.optim.SGD(third.parameters(), lr=0.5)
third_loader = DataLoader(data, batch_size=4)
for epoch in range(2):
    for i, (x, y) in enumerate(third_loader):
        loss = nn.functional.cross_entropy(third(x), y)
        loss.backward()
        if (i + 1) % max(1, epoch * 4) == 0:  # ABP399 blocked
            third_optimizer.step()
            third_optimizer.zero_grad()

fourth = nn.Linear(4, 3)
fourth_optimizer = torch.optim.SGD(fourth.parameters(), lr=0.5)
fourth_loader = DataLoader(data, batch_size=4)
late = int(str(args.last))
for i, (x, y) in enumerate(fourth_loader):
    loss = nn.functional.cross_entropy(fourth(x), y)
    loss.backward()
    if (i + 1) % late == 0:  # ABP399 blocked
        fourth_optimizer.step()
        fourth_optimizer.zero_grad()

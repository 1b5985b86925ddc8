"""What is differentiated has no name of its own, or is computed elsewhere."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(80, 4), torch.randn(80, 3))
loader = DataLoader(data, batch_size=8)


def smoothed(out, y, weight=0.1):
    return F.smooth_l1_loss(out, y) + weight * out.square().mean()


def loss_of(model, x, y):
    return smoothed(model(x), y)


def by_expression(model, optimizer, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        criterion(out, y).backward()  # ABP303 modified
        optimizer.step()
        print(out[0, 0].item())


def by_share(model, optimizer, parts):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        (loss / parts).backward()  # ABP303 modified
        optimizer.step()
        print(loss.item())


def by_rows(model, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y, reduction="none")
        loss.mean().backward()  # ABP303 modified
        optimizer.step()
        print(loss.sum().item())


def by_function(model, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        print(loss.item())


def one_step(model, optimizer, x, y):
    model.train()
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    first = nn.Linear(4, 3)
    first_optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    criterion = nn.L1Loss()
    by_expression(first, first_optimizer, criterion)
    second = nn.Linear(4, 3)
    second_optimizer = torch.optim.Adam(second.parameters())
    parts = 4
    by_share(second, second_optimizer, parts)


main()
third = nn.Linear(4, 3)
third_optimizer = torch.optim.AdamW(third.parameters(), lr=0.01)
by_rows(third, third_optimizer)
fourth = nn.Linear(4, 3)
fourth_optimizer = torch.optim.RMSprop(fourth.parameters())
by_function(fourth, fourth_optimizer)
fifth = nn.Linear(4, 3)
last_optimizer = torch.optim.SGD(fifth.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        print(one_step(fifth, last_optimizer, x, y))

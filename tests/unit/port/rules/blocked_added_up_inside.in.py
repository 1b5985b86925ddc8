"""Gradients that a loop adds up where one call cannot: batches of unknown number, what is read."""

import torch
from torch import nn

data = torch.randn(6, 8, 4)
first = nn.Linear(4, 3)
first_optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
for _ in range(3):
    first_optimizer.zero_grad()
    for x in data[:2]:
        loss = first(x).square().mean()
        loss.backward()  # ABP399 blocked
    first_optimizer.step()
second = nn.Linear(4, 3)
second_optimizer = torch.optim.SGD(second.parameters(), lr=0.1)
for _ in range(3):
    second_optimizer.zero_grad()
    for i in range(2):
        x = data[i]
        loss = second(x).square().mean()
        loss.backward()  # ABP399 blocked
        print(loss.item() * len(x))
    second_optimizer.step()
third = nn.Linear(4, 3)
third_optimizer = torch.optim.SGD(third.parameters(), lr=0.1)
for _ in range(3):
    for i in range(2):
        third_optimizer.zero_grad()  # ABP399 blocked
        x = data[i]
        loss = third(x).square().mean()
        loss.backward()
    third_optimizer.step()
fourth = nn.Linear(4, 3)
fourth_optimizer = torch.optim.SGD(fourth.parameters(), lr=0.1)
for update in range(3):
    fourth_optimizer.zero_grad()
    for i in range(update + 1):
        x = data[i]
        out = fourth(x)
        loss = out.square().mean()
        loss.backward()  # ABP399 blocked
    fourth_optimizer.step()
fifth = nn.Linear(4, 3)
fifth_optimizer = torch.optim.SGD(fifth.parameters(), lr=0.1)
for update in range(3):
    fifth_optimizer.zero_grad()
    for i in range(2):
        x = data[i]
        out = fifth(x)
        loss = out.square().mean()
        loss.backward()
        if loss > 9:
            break  # ABP399 blocked
    fifth_optimizer.step()

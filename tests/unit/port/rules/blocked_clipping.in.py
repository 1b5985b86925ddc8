"""Limits of gradients that are not one norm of all of them."""

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

first, second, third = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
first_optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
second_optimizer = torch.optim.SGD(second.parameters(), lr=0.1)
third_optimizer = torch.optim.SGD(third.parameters(), lr=0.1)
for step in range(3):
    loss = first(torch.randn(8, 3)).square().mean()
    first_optimizer.zero_grad()
    loss.backward()
    clip_grad_value_(first.parameters(), 0.5)  # ABP399 blocked
    first_optimizer.step()
for step in range(3):
    loss = second(torch.randn(8, 3)).square().mean()
    second_optimizer.zero_grad()
    loss.backward()
    norm = clip_grad_norm_(second.parameters(), 0.5)  # ABP399 blocked
    second_optimizer.step()
    print(norm)
for step in range(3):
    loss = third(torch.randn(8, 3)).square().mean()
    third_optimizer.zero_grad()
    loss.backward()
    if step > 0:
        clip_grad_norm_(third.parameters(), 0.5)  # ABP432 blocked
    third_optimizer.step()
fifth = torch.nn.Linear(3, 1)
fifth_optimizer = torch.optim.SGD(fifth.parameters(), lr=0.1)
for step in range(3):
    loss = fifth(torch.randn(8, 3)).square().mean()
    fifth_optimizer.zero_grad()
    loss.backward()
    if first_optimizer:
        clip_grad_norm_(fifth.parameters(), 0.5)  # ABP399 blocked
        print("clipped")
    fifth_optimizer.step()
fourth = torch.nn.Linear(3, 1)
fourth_optimizer = torch.optim.SGD([p for n, p in fourth.named_parameters() if n != "bias"], lr=0.1)
for step in range(3):
    loss = fourth(torch.randn(8, 3)).square().mean()
    fourth_optimizer.zero_grad()
    loss.backward()
    clip_grad_norm_(fourth.parameters(), 0.5)  # ABP432 manual
    fourth_optimizer.step()

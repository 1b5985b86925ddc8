"""Limits of gradients under a condition that never changes, and of optimizers without an argument."""

import torch
from torch.nn.utils import clip_grad_norm_

torch.manual_seed(0)
grad_clip, no_clip = 0.01, 0.0
scaler = torch.amp.GradScaler("cpu", enabled=False)

first = torch.nn.Linear(3, 1)
first_optimizer = torch.optim.RMSprop(first.parameters(), lr=0.1)  # ABP431 modified
for step in range(3):
    loss = first(torch.randn(8, 3)).square().mean()
    first_optimizer.zero_grad()
    loss.backward()
    clip_grad_norm_(first.parameters(), grad_clip)  # ABP431 modified
    first_optimizer.step()
    print(loss.item())

second = torch.nn.Linear(3, 1)
second_optimizer = torch.optim.AdamW(second.parameters(), lr=0.1)
for step in range(3):
    loss = second(torch.randn(8, 3)).square().mean()
    second_optimizer.zero_grad()
    scaler.scale(loss).backward()
    if grad_clip != 0.0:  # ABP431 modified
        scaler.unscale_(second_optimizer)
        clip_grad_norm_(second.parameters(), grad_clip)
    scaler.step(second_optimizer)
    scaler.update()
    print(loss.item())

third = torch.nn.Linear(3, 1)
third_optimizer = torch.optim.Adagrad(third.parameters(), lr=0.1)  # ABP431 modified
for step in range(3):
    loss = third(torch.randn(8, 3)).square().mean()
    third_optimizer.zero_grad()
    loss.backward()
    if no_clip:  # ABP431 modified
        clip_grad_norm_(third.parameters(), no_clip)
    third_optimizer.step()
    print(loss.item())


def update(model, optimizer, limit=0.01):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 3)).square().mean()
    loss.backward()
    clip_grad_norm_(model.parameters(), limit)  # ABP431 modified
    optimizer.step()
    return loss.item()


def main():
    fourth = torch.nn.Linear(3, 1)
    fourth_optimizer = torch.optim.SGD(fourth.parameters(), lr=0.1)
    for step in range(3):
        print(update(fourth, fourth_optimizer))


main()

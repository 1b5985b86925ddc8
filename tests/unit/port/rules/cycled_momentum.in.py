"""Schedulers that change a momentum beside the rate."""

import torch
from torch import nn

torch.manual_seed(0)
model, other, third = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.999))
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.01, momentum=0.9)
third_optimizer = torch.optim.Adam(third.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12)
other_scheduler = torch.optim.lr_scheduler.CyclicLR(other_optimizer, 0.01, 0.1, step_size_up=3)
third_scheduler = torch.optim.lr_scheduler.OneCycleLR(
    third_optimizer, 0.1, total_steps=12, cycle_momentum=False
)
for step in range(10):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), torch.ones(8, 3))
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(loss.item())
for step in range(10):
    x = torch.randn(8, 4)
    other_optimizer.zero_grad()
    loss = nn.functional.mse_loss(other(x), torch.ones(8, 3))
    loss.backward()
    other_optimizer.step()
    other_scheduler.step()
    print(loss.item())
for step in range(10):
    x = torch.randn(8, 4)
    third_optimizer.zero_grad()
    loss = nn.functional.mse_loss(third(x), torch.ones(8, 3))
    loss.backward()
    third_optimizer.step()
    third_scheduler.step()
    print(loss.item())

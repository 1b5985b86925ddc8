"""Steps that a session does not run."""

import torch
from torch import nn

first, second = nn.Linear(4, 3), nn.Linear(4, 3)
opt = torch.optim.SGD(first.parameters(), lr=0.1)
other = torch.optim.SGD(second.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=5)  # ABP2004 blocked
for i, x in enumerate(torch.randn(8, 4, 4)):
    loss = first(x).mean()
    loss.backward()  # ABP2003 blocked
    if (i + 1) % 2 == 0:
        opt.step()
        opt.zero_grad()
    schedule.step()
for x in torch.randn(8, 4, 4):
    other.zero_grad()
    second(x).mean().backward()  # ABP2002 blocked
    other.step()
for group in opt.param_groups:  # ABP2004 blocked
    group["betas"] = (0.8, 0.9)

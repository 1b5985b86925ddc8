"""Two optimizers of the same weights, of which one is made too early, and one perhaps not at all."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
early, perhaps = nn.Linear(4, 4), nn.Linear(4, 4)

adam = torch.optim.Adam(early.parameters(), lr=0.01)
sgd = torch.optim.SGD(early.parameters(), lr=0.01)
for x in loader:
    adam.zero_grad()
    loss = F.mse_loss(early(x), x)
    loss.backward()
    adam.step()
for x in loader:
    sgd.zero_grad()
    loss = F.mse_loss(early(x), x)
    loss.backward()  # ABP399 blocked
    sgd.step()

if "--warm-up" in sys.argv:
    warm_up = torch.optim.Adam(perhaps.parameters(), lr=0.01)
    for x in loader:
        warm_up.zero_grad()
        loss = F.mse_loss(perhaps(x), x)
        loss.backward()
        warm_up.step()
last = torch.optim.SGD(perhaps.parameters(), lr=0.01)
for x in loader:
    last.zero_grad()
    loss = F.mse_loss(perhaps(x), x)
    loss.backward()  # ABP399 blocked
    last.step()

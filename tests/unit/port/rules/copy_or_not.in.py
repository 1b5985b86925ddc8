"""An optimizer of a model or of a copy, as an argument says: its own model is in the program."""

import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
model = nn.Linear(4, 4)
trained = copy.deepcopy(model) if "--apart" in sys.argv else model
trained.train()
optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
for x in loader:
    optimizer.zero_grad()
    loss = F.mse_loss(trained(x), x)
    loss.backward()
    optimizer.step()

other = nn.Linear(4, 4)
kept = None
if "--keep" in sys.argv:
    kept = copy.deepcopy(other)
chosen = kept or other
chosen.train()
second = torch.optim.SGD(chosen.parameters(), lr=0.1)
for x in loader:
    second.zero_grad()
    loss = F.mse_loss(chosen(x), x)
    loss.backward()
    second.step()
for each in (trained, model, chosen, other):
    print(each.weight.sum().item())

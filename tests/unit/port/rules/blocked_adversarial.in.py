"""Two networks that are trained against each other: their calls are of training, not evaluations."""

import torch
from torch import nn

make = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
judge = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
criterion = nn.BCEWithLogitsLoss()
judging = torch.optim.Adam(judge.parameters(), lr=1e-3)
making = torch.optim.Adam(make.parameters(), lr=1e-3)
ones, zeros = torch.ones(8, 1), torch.zeros(8, 1)
for step in range(10):
    judge.zero_grad()
    real = criterion(judge(torch.randn(8, 4)), ones)
    real.backward()  # ABP399 blocked
    fake = make(torch.randn(8, 2))
    made = criterion(judge(fake.detach()), zeros)
    made.backward()  # ABP399 blocked
    judging.step()
    make.zero_grad()
    loss = criterion(judge(fake), ones)
    loss.backward()  # ABP399 blocked
    making.step()

"""Two networks against each other, each with its own optimizer, in one loop."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

maker = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
judge = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
criterion = nn.BCEWithLogitsLoss()
maker_optimizer = torch.optim.Adam(maker.parameters(), lr=0.01)
judge_optimizer = torch.optim.Adam(judge.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(64, 2)), batch_size=8)

for (real,) in loader:
    judge.zero_grad()
    on_real = criterion(judge(real), torch.ones(8, 1))
    on_real.backward()  # ABP399 blocked
    fake = maker(torch.randn(8, 4))
    on_fake = criterion(judge(fake.detach()), torch.zeros(8, 1))
    on_fake.backward()  # ABP399 blocked
    judge_optimizer.step()
    maker.zero_grad()
    fooled = criterion(judge(fake), torch.ones(8, 1))
    fooled.backward()  # ABP399 blocked
    maker_optimizer.step()

"""What changes between updates, each in a way that a program would not see."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 12)
        self.head = nn.Linear(12, 3)
        self.noise = False
        self.tau = 1.0

    def forward(self, x):
        self.tau = max(0.1, 0.9 * self.tau)
        x = torch.relu(self.body(x)) * random.random()  # ABP609 blocked
        return self.head(x) / self.tau + 0.1 if self.noise else self.head(x)


def freeze(module, flag):
    for p in module.parameters():
        p.requires_grad = flag  # ABP612 blocked


loader = DataLoader(TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,))), batch_size=8)
model = Net()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
settings = {"share": 1.0, "seen": 0}
for epoch in range(3):
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1 * epoch)  # ABP613 blocked
    model.noise = epoch > 1  # ABP611 blocked
    freeze(model.body, epoch > 0)
    settings["share"] *= 0.5  # ABP613 blocked
    settings["seen"] = 0
    optimizer.state.clear()  # ABP615 blocked
    for x, y in loader:
        optimizer.zero_grad()
        loss = settings["share"] * criterion(model(x), y)
        loss.backward()
        optimizer.step()
        settings["seen"] += 1

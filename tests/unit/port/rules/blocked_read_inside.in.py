"""What functions of a step read from around them, and the host changes between updates."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Weighted:
    def __init__(self):
        self.share = 1.0
        self.calls = 0
        self.inner = nn.CrossEntropyLoss()

    def __call__(self, scores, labels):
        return self.share * self.inner(scores, labels)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 3)

    def forward(self, x):
        return self.body(x) / temperature


def penalty(module):
    return alpha * sum(p.pow(2).sum() for p in module.parameters())


def loss_of(scores, labels):
    return criterion(scores, labels) * settings["share"] + penalty(model) + epoch * halved(scores)


loader = DataLoader(TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,))), batch_size=8)
model = Net()
criterion = Weighted()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
shares, log = [1.0], []
settings = {"share": 1.0, "seen": 0}
alpha, temperature, weight, once = 0.1, 1.0, 0.5, 2.0
halved = lambda scores: weight * once * shares[-1] * scores.mean()  # noqa: E731


def train():
    global alpha
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
    alpha = alpha / 2  # ABP613 blocked


for epoch in range(3):  # ABP613 blocked
    settings["share"] *= 0.5  # ABP613 blocked
    criterion.share = 1 / (epoch + 1)  # ABP613 blocked
    criterion.calls = settings["seen"] = 0
    temperature, seen = 1.0 + epoch, 0  # ABP613 blocked
    shares.append(0.5)  # ABP613 blocked
    log.append(epoch)
    weight *= 0.5  # ABP613 blocked
    train()

"""Forwards that look at values, and others that only look at shapes and flags."""

import torch
from torch import nn


class OfValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        scores = self.layer(x)
        if scores.mean() > 0:  # ABP605 blocked
            scores = -scores
        largest = scores.max()
        count = int(largest)  # ABP605 blocked
        while (scores > 1).any():  # ABP605 blocked
            scores = scores / 2
        best = scores.argmax().item()  # ABP605 blocked
        forced = torch.rand(1).item() < 0.5  # ABP605 blocked
        if torch.rand(1) < 0.5:  # ABP605 blocked
            scores = scores + torch.rand(scores.shape) * forced
        return scores * best * count if largest < 3 else scores  # ABP605 blocked


class OfShapes(nn.Module):
    def __init__(self, deep=False):
        super().__init__()
        self.layer, self.deep = nn.Linear(4, 4), deep

    def forward(self, x, mask=None, times: int = 2, scale=1.0):
        rows, columns = x.shape
        if mask is not None and x.size(0) > 1:
            x = x * mask
        if self.training and self.deep and len(x) > 3 and rows > columns:
            x = self.layer(x)
        for _ in range(times):
            x = self.layer(x) if scale > 1 else x
        return x if not isinstance(x, tuple) else x[0]


model = nn.Sequential(OfValues(), OfShapes())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()

"""Linear layers with ReLU between them: 784, three times 1024, ten classes."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

WIDTHS = (784, 1024, 1024, 1024, 10)


class Dense(nn.Module):
    """Four linear layers, loss inside."""

    def __init__(self):
        super().__init__()
        pairs = itertools.pairwise(WIDTHS)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairs)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Vectors [B, 784], labels [B] -> loss."""
        *inner, last = self.layers
        for layer in inner:
            x = F.relu(layer(x))
        return F.cross_entropy(last(x), labels)


def small() -> nn.Sequential:
    """Build a network of 64-128-128-10 units with ReLU; it returns scores."""
    first, second, last = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 10)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors float32 [size, 784] and labels int64 [size]."""
    return torch.randn(size, WIDTHS[0]), torch.randint(0, WIDTHS[-1], (size,))

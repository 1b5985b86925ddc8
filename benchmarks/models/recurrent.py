"""A classifier of sequences: one recurrent layer and a linear layer on its last state."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

FEATURES, STEPS, UNITS, CLASSES = 32, 64, 128, 10
LONG = 256  # steps


class Recurrent(nn.Module):
    """128 units, ten classes, loss inside."""

    def __init__(self, kind: Callable[..., nn.RNNBase] = nn.LSTM):
        super().__init__()
        self.layer = kind(FEATURES, UNITS, batch_first=True)
        self.head = nn.Linear(UNITS, CLASSES)

    def scores(self, sequences: torch.Tensor) -> torch.Tensor:
        """[B, steps, features] -> [B, classes]."""
        states, _ = self.layer(sequences)
        return self.head(states[:, -1])

    def forward(self, sequences: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Sequences [B, steps, features], labels [B] -> loss."""
        return F.cross_entropy(self.scores(sequences), labels)


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences float32 [size, 64, 32] and labels int64 [size]."""
    return torch.randn(size, STEPS, FEATURES), torch.randint(0, CLASSES, (size,))


def long(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``batch``, with 256 steps."""
    return torch.randn(size, LONG, FEATURES), torch.randint(0, CLASSES, (size,))

"""A transformer encoder of four layers, loss over every position."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

TOKENS, SEQUENCE = 1000, 128


class Transformer(nn.Module):
    """Four encoder layers of one width; the inner layers have four times as many units."""

    def __init__(self, width: int = 128):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.embedding, self.head = nn.Embedding(TOKENS, width), nn.Linear(width, TOKENS)
        self.layers = nn.TransformerEncoder(layer, 4)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Tokens and targets [B, sequence] -> loss."""
        scores = self.head(self.layers(self.embedding(tokens)))
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets, int64 [size, 128] each."""
    return torch.randint(0, TOKENS, (size, SEQUENCE)), torch.randint(0, TOKENS, (size, SEQUENCE))

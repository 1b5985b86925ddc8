"""Transformer encoders, loss over every position."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

TOKENS, SEQUENCE = 1000, 128
_BERT_TOKENS = 30522


class Transformer(nn.Module):
    """Encoder layers of one width; the inner layers have four times as many units."""

    def __init__(
        self,
        width: int = 128,
        *,
        layers: int = 4,
        heads: int = 4,
        tokens: int = TOKENS,
        activation: str = "relu",
    ):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation=activation, batch_first=True
        )
        self.embedding, self.head = nn.Embedding(tokens, width), nn.Linear(width, tokens)
        self.layers = nn.TransformerEncoder(layer, layers)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Tokens and targets [B, sequence] -> loss."""
        scores = self.head(self.layers(self.embedding(tokens)))
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def bert() -> Transformer:
    """Build a network of BERT-base's size (arXiv 1810.04805)."""
    return Transformer(768, layers=12, heads=12, tokens=_BERT_TOKENS, activation="gelu")


def batch(size: int, tokens: int = TOKENS) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets, int64 [size, 128] each."""
    return torch.randint(0, tokens, (size, SEQUENCE)), torch.randint(0, tokens, (size, SEQUENCE))


def bert_batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and targets of BERT's vocabulary."""
    return batch(size, _BERT_TOKENS)

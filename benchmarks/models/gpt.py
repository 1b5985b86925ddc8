"""A small language model of characters: decoder layers with the norm before each part."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

TOKENS, SEQUENCE, WIDTH, HEADS, LAYERS = 65, 64, 128, 4, 4


class Block(nn.Module):
    """Causal attention and two linear layers, each added to what came in."""

    def __init__(self):
        super().__init__()
        self.attention_norm, self.inner_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.joint, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, sequence, width] -> the same."""
        rows, length, _ = x.shape
        parts = self.joint(self.attention_norm(x)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.narrow(F.gelu(self.widen(self.inner_norm(x))))


class GPT(nn.Module):
    """Blocks; scores come from the embedding's own weights, loss inside."""

    def __init__(self, layers: int = LAYERS):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.norm = nn.LayerNorm(WIDTH)
        for weight in (self.tokens.weight, self.positions.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Tokens and targets [B, sequence] -> loss."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        scores = F.linear(self.norm(self.blocks(x)), self.tokens.weight)
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and the tokens that follow them, int64 [size, 64] each."""
    text = torch.randint(0, TOKENS, (size, SEQUENCE + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()

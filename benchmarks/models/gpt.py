"""Language models: decoder layers with the norm before each part."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

TOKENS, SEQUENCE, WIDTH, HEADS, LAYERS = 65, 64, 128, 4, 4  # characters; sizes of the table
_GPT2_TOKENS = 50257


class Block(nn.Module):
    """Attention, causal or not, and two linear layers, each added to what came in."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS, *, causal: bool = True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.attention_norm, self.inner_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joint, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, sequence, width] -> the same."""
        rows, length, width = x.shape
        parts = self.joint(self.attention_norm(x)).view(rows, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.mix(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.narrow(F.gelu(self.widen(self.inner_norm(x))))


class GPT(nn.Module):
    """Causal blocks; scores come from the embedding's own weights, loss inside."""

    def __init__(
        self,
        layers: int = LAYERS,
        width: int = WIDTH,
        heads: int = HEADS,
        sequence: int = SEQUENCE,
        tokens: int = TOKENS,
    ):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(sequence, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for weight in (self.tokens.weight, self.positions.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Tokens and targets [B, sequence] -> loss."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        scores = F.linear(self.norm(self.blocks(x)), self.tokens.weight)
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def gpt384() -> GPT:
    """Build six layers of 384 over 256 characters."""
    return GPT(6, 384, 6, 256)


def gpt2() -> GPT:
    """Build a network of GPT-2's smallest size: 124 million weights."""
    return GPT(12, 768, 12, 1024, _GPT2_TOKENS)


def batch(
    size: int, sequence: int = SEQUENCE, tokens: int = TOKENS
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and the tokens that follow them, int64 [size, sequence] each."""
    text = torch.randint(0, tokens, (size, sequence + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def long_batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch of 256 characters each."""
    return batch(size, 256)


def gpt2_batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch of 256 tokens each, of GPT-2's vocabulary."""
    return batch(size, 256, _GPT2_TOKENS)

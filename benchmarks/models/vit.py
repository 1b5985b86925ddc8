"""A GPT of 6 layers of 384 and ViT-S, of blocks with the norm before each part; loss inside."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

WIDTH, HEADS = 384, 6
TOKENS, SEQUENCE = 65, 256
PATCH, IMAGE, CLASSES = 16, 224, 1000


class Block(nn.Module):
    """Attention, causal or not, and two linear layers, each added to what came in."""

    def __init__(self, *, causal: bool):
        super().__init__()
        self.causal = causal
        self.attention_norm, self.inner_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.joint, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, sequence, 384] -> the same."""
        rows, length, _ = x.shape
        parts = self.joint(self.attention_norm(x)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.mix(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.narrow(F.gelu(self.widen(self.inner_norm(x))))


class GPT(nn.Module):
    """Six causal blocks over 256 tokens; scores come from the embedding's own weights."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.Sequential(*(Block(causal=True) for _ in range(6)))
        self.norm = nn.LayerNorm(WIDTH)
        for weight in (self.tokens.weight, self.positions.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Tokens and targets [B, 256] -> loss."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        scores = F.linear(self.norm(self.blocks(x)), self.tokens.weight)
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


class ViT(nn.Module):
    """Twelve blocks over the patches of an image and a class token."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, (IMAGE // PATCH) ** 2 + 1, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(Block(causal=False) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Images [B, 3, 224, 224] and labels [B] -> loss."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.positions
        return F.cross_entropy(self.head(self.norm(self.blocks(x))[:, 0]), labels)


def text(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and the tokens that follow them, int64 [size, 256] each."""
    tokens = torch.randint(0, TOKENS, (size, SEQUENCE + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def pictures(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images float32 [size, 3, 224, 224] and labels int64 [size]."""
    return torch.randn(size, 3, IMAGE, IMAGE), torch.randint(0, CLASSES, (size,))

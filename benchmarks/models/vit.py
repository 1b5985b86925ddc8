"""ViT-S: twelve layers of 384 with the norm before each part; loss inside."""

from __future__ import annotations

import torch
from benchmarks.models.gpt import Block
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

WIDTH, HEADS, PATCH, IMAGE, CLASSES = 384, 6, 16, 224, 1000


class ViT(nn.Module):
    """Twelve blocks over the patches of an image and a class token."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, (IMAGE // PATCH) ** 2 + 1, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS, causal=False) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """[B, 3, 224, 224] -> [B, classes]."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Images [B, 3, 224, 224] and labels [B] -> loss."""
        return F.cross_entropy(self.scores(images), labels)


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images float32 [size, 3, 224, 224] and labels int64 [size]."""
    return torch.randn(size, 3, IMAGE, IMAGE), torch.randint(0, CLASSES, (size,))

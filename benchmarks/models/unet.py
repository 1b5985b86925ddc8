"""A U-Net of three halvings for images of 256 x 256 (arXiv 1505.04597, padded, with batch norm)."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

EDGE = 256


def _two_convolutions(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """16 channels at full size, twice as many at each halving; two classes, loss inside."""

    def __init__(self, channels: int = 16):
        super().__init__()
        widths = [channels * 2**level for level in range(4)]
        self.first = _two_convolutions(3, channels)
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(_two_convolutions(*pair) for pair in pairs)
        self.widen = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairs[::-1])
        self.up = nn.ModuleList(_two_convolutions(2 * a, a) for a, _ in pairs[::-1])
        self.head = nn.Conv2d(channels, 2, 1)

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """[B, 3, H, W] -> [B, classes, H, W]."""
        x, kept = self.first(images), []
        for level in self.down:
            kept.append(x)
            x = level(F.max_pool2d(x, 2))
        for widen, level in zip(self.widen, self.up, strict=True):
            x = level(torch.cat([kept.pop(), widen(x)], dim=1))
        return self.head(x)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Images [B, 3, H, W], labels [B, H, W] -> loss."""
        return F.cross_entropy(self.scores(images), labels)


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images float32 [size, 3, 256, 256] and labels int64 [size, 256, 256]."""
    return torch.randn(size, 3, EDGE, EDGE), torch.randint(0, 2, (size, EDGE, EDGE))

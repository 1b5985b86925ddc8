"""The 18-layer residual network for 32 x 32 images (arXiv 1512.03385)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention


class Residual(nn.Module):
    """Two convolutions with batch norm and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.around: nn.Module = nn.Identity()
        if not same:
            shrink = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.around = nn.Sequential(shrink, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, inputs, H, W] -> [B, outputs, H / stride, W / stride]."""
        inner = self.second(F.relu(self.first_norm(self.first(x))))
        return F.relu(self.second_norm(inner) + self.around(x))


class ResNet18(nn.Module):
    """The whole network, loss inside."""

    def __init__(self):
        super().__init__()
        plan = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        plan += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64))
        self.blocks = nn.Sequential(*(Residual(*sizes) for sizes in plan))
        self.head = nn.Linear(512, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Images [B, 3, 32, 32], labels [B] -> loss."""
        features = self.blocks(F.relu(self.stem(images))).mean((2, 3))
        return F.cross_entropy(self.head(features), labels)


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images float32 [size, 3, 32, 32] and labels int64 [size]."""
    return torch.randn(size, 3, 32, 32), torch.randint(0, 10, (size,))

"""ResNet-18 and -50 (arXiv 1512.03385), and a DenseNet for 32 x 32 images (arXiv 1608.06993)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from .residual import Residual
from .separable import Classifier, batch  # noqa: F401 - rows of the table take their inputs here

_GROWTH = 12


class Bottleneck(nn.Module):
    """A convolution of 3x3 between two of 1x1, and a way around them."""

    def __init__(self, inputs: int, inner: int, stride: int):
        super().__init__()
        outputs = 4 * inner
        self.layers = nn.Sequential(
            *(nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.around: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            shrink = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.around = nn.Sequential(shrink, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, inputs, H, W] -> [B, 4 inner, H / stride, W / stride]."""
        return F.relu(self.layers(x) + self.around(x))


def _stem() -> list[nn.Module]:
    conv = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    return [conv, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]


def resnet18() -> Classifier:
    """ResNet-18 for images of 224 x 224."""
    layers, channels = _stem(), 64
    for outputs in (64, 128, 256, 512):
        layers += [Residual(channels, outputs, 1 + (outputs > 64)), Residual(outputs, outputs, 1)]
        channels = outputs
    return Classifier(layers, channels)


def resnet50() -> Classifier:
    """ResNet-50."""
    layers, channels = _stem(), 64
    for inner, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(blocks):
            layers.append(Bottleneck(channels, inner, stride if i == 0 else 1))
            channels = 4 * inner
    return Classifier(layers, channels)


class Grown(nn.Module):
    """The images, and some more channels that follow from them."""

    def __init__(self, channels: int):
        super().__init__()
        inner = 4 * _GROWTH
        self.layers = nn.Sequential(
            *(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, inner, 1, bias=False)),
            *(nn.BatchNorm2d(inner), nn.ReLU()),
            nn.Conv2d(inner, _GROWTH, 3, padding=1, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, C, H, W] -> [B, C + growth, H, W]."""
        return torch.cat([x, self.layers(x)], 1)


def densenet() -> Classifier:
    """Build a DenseNet of 40 layers, with three blocks of six pairs."""
    layers: list[nn.Module] = [nn.Conv2d(3, 2 * _GROWTH, 3, padding=1, bias=False)]
    channels = 2 * _GROWTH
    for block in range(3):
        for _ in range(6):
            layers.append(Grown(channels))
            channels += _GROWTH
        if block < 2:
            halved = nn.Conv2d(channels, channels // 2, 1, bias=False)
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), halved, nn.AvgPool2d(2)]
            channels //= 2
    return Classifier([*layers, nn.BatchNorm2d(channels), nn.ReLU()], channels)

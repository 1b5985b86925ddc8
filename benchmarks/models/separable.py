"""Networks of depthwise convolutions and those of 1x1, written by their papers in few lines.

MobileNetV2 (arXiv 1801.04381), EfficientNet-B0 (arXiv 1905.11946) and a small ConvNeXt
(arXiv 2201.03545). Dropout and stochastic depth are left out, so that losses can be compared.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

CLASSES = 10
# Expansion, channels, repeats, stride of the first, kernel.
_MOBILENET = (
    *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3)),
    *((6, 96, 3, 1, 3), (6, 160, 3, 2, 3), (6, 320, 1, 1, 3)),
)
_EFFICIENTNET = (
    *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)),
    *((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
)


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class Excitation(nn.Module):
    """Scales channels by what their means say."""

    def __init__(self, channels: int, between: int):
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, between, 1), nn.Conv2d(between, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, C, H, W] -> the same."""
        means = x.mean((2, 3), keepdim=True)
        return x * self.up(F.silu(self.down(means))).sigmoid()


class Inverted(nn.Module):
    """More channels, a depthwise convolution, fewer channels; and a way around."""

    def __init__(
        self,
        inputs: int,
        plan: tuple[int, int, int, int],
        activation: Callable[[], nn.Module],
        *,
        excited: bool,
    ):
        super().__init__()
        expansion, outputs, stride, kernel = plan
        inner = inputs * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += [*_convolution(inputs, inner, 1), activation()]
        layers += [*_convolution(inner, inner, kernel, stride, inner), activation()]
        if excited:
            layers.append(Excitation(inner, inputs // 4))
        self.layers = nn.Sequential(*layers, *_convolution(inner, outputs, 1))
        self.around = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, inputs, H, W] -> [B, outputs, H / stride, W / stride]."""
        return x + self.layers(x) if self.around else self.layers(x)


class Classifier(nn.Module):
    """A network of images with its loss."""

    def __init__(self, layers: list[nn.Module], channels: int):
        super().__init__()
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(channels, CLASSES)

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """[B, 3, H, W] -> [B, classes]."""
        return self.head(self.layers(images).mean((2, 3)))

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Images [B, 3, H, W], labels [B] -> loss."""
        return F.cross_entropy(self.scores(images), labels)


def _inverted(
    plans: tuple[tuple[int, int, int, int, int], ...],
    activation: Callable[[], nn.Module],
    *,
    excited: bool,
) -> Classifier:
    layers, channels = [*_convolution(3, 32, 3, 2), activation()], 32
    for expansion, outputs, repeats, stride, kernel in plans:
        for i in range(repeats):
            plan = expansion, outputs, stride if i == 0 else 1, kernel
            layers.append(Inverted(channels, plan, activation, excited=excited))
            channels = outputs
    return Classifier([*layers, *_convolution(channels, 1280, 1), activation()], 1280)


def mobilenet() -> Classifier:
    """MobileNetV2."""
    return _inverted(_MOBILENET, nn.ReLU6, excited=False)


def efficientnet() -> Classifier:
    """EfficientNet-B0."""
    return _inverted(_EFFICIENTNET, nn.SiLU, excited=True)


class Modern(nn.Module):
    """A depthwise convolution of 7x7, a norm, and two linear layers of each pixel."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, C, H, W] -> the same."""
        inner = self.norm(self.conv(x).permute(0, 2, 3, 1))
        inner = self.scale * self.down(F.gelu(self.up(inner)))
        return x + inner.permute(0, 3, 1, 2)


def convnext() -> Classifier:
    """Build a ConvNeXt half as deep and wide as the smallest published one."""
    layers: list[nn.Module] = [nn.Conv2d(3, 48, 4, 4)]
    for channels, blocks in ((48, 2), (96, 2), (192, 4), (384, 2)):
        layers += [Modern(channels) for _ in range(blocks)]
        if channels < 384:
            layers.append(nn.Conv2d(channels, 2 * channels, 2, 2))
    return Classifier(layers, 384)


def batch(size: int, edge: int = 224) -> tuple[torch.Tensor, torch.Tensor]:
    """Images float32 [size, 3, edge, edge] and labels int64 [size]."""
    return torch.randn(size, 3, edge, edge), torch.randint(0, CLASSES, (size,))

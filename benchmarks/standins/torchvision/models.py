"""Networks with the layers and names of the published ones, and first weights of torch's own.

They are narrower than published, so that twenty updates take seconds on a processor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class _Block(nn.Module):
    """Two convolutions and what goes past them."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        past = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + past)


class ResNet(nn.Module):
    """A residual network of four stages with two blocks each.

    Args:
        classes: outputs.
        widths: channels of each stage; the first convolution has 64, as published.
    """

    def __init__(self, classes: int, widths: tuple[int, int, int, int]):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        one, two, three, four = widths
        self.layer1 = nn.Sequential(_Block(64, one, 1), _Block(one, one, 1))
        self.layer2 = nn.Sequential(_Block(one, two, 2), _Block(two, two, 1))
        self.layer3 = nn.Sequential(_Block(two, three, 2), _Block(three, three, 1))
        self.layer4 = nn.Sequential(_Block(three, four, 2), _Block(four, four, 1))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(four, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of each class."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class _VGG(nn.Module):
    def __init__(self, widths: tuple[int, ...], classes: int):
        super().__init__()
        layers, inputs = list[nn.Module](), 3
        for width in widths:
            if not width:
                layers.append(nn.MaxPool2d(2, 2))
                continue
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = width
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def resnet18(weights: Any = None, num_classes: int = 1000) -> nn.Module:
    """Build a residual network of 18 layers of equal width."""
    del weights  # none are published here
    return ResNet(num_classes, (64, 64, 64, 64))


def vgg16(weights: Any = None, pretrained: bool = False, num_classes: int = 1000) -> nn.Module:
    """Build the convolutions of a 16-layer network with one classifier layer.

    They have a quarter of the channels.
    """
    del weights, pretrained
    block = (64, 64, 64, 0, 128, 128, 128, 0, 128, 128, 128, 0)
    return _VGG((16, 16, 0, 32, 32, 0, *block), num_classes)

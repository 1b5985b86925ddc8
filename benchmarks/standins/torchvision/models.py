"""Networks with the layers and names of the published ones, and first weights of torch's own."""

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


class _ResNet(nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(_Block(64, 64, 1), _Block(64, 64, 1))
        self.layer2 = nn.Sequential(_Block(64, 128, 2), _Block(128, 128, 1))
        self.layer3 = nn.Sequential(_Block(128, 256, 2), _Block(256, 256, 1))
        self.layer4 = nn.Sequential(_Block(256, 512, 2), _Block(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
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
    """A residual network of 18 layers."""
    del weights  # none are published here
    return _ResNet(num_classes)


def vgg16(weights: Any = None, pretrained: bool = False, num_classes: int = 1000) -> nn.Module:
    """The convolutions of a network of 16 layers, with one layer for the classes."""
    del weights, pretrained
    block = (256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
    return _VGG((64, 64, 0, 128, 128, 0, *block), num_classes)

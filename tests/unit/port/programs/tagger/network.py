"""A network that looks at three planes with shared layers and mixes them where they are smallest."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, outputs, kernel=3):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x):
        return nn.functional.leaky_relu(self.norm(self.conv(x)))


class PlaneNet(nn.Module):
    def __init__(self, width=4, classes=3):
        super().__init__()
        self.first = Block(1, width, 5)
        self.down = nn.MaxPool2d(2)
        self.deepest = Block(3 * width, 3 * width)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear")
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, images):
        planes = [self.first(plane) for plane in torch.chunk(images, chunks=3, dim=1)]
        mixed = self.deepest(torch.cat([self.down(plane) for plane in planes], dim=1))
        small = torch.chunk(mixed, chunks=3, dim=1)
        return tuple(self.last(self.up(part) + plane) for part, plane in zip(small, planes))

"""UResNet for images: all layers are shared by the three planes and called once for each.

So each batch normalisation sees three batches a step: it normalises every plane by the plane's own
statistics, and moves its running statistics three times. Stacking planes along the batch would be
another network. Described in "Cosmic Background Removal with Deep Neural Networks in SBND",
arXiv:2012.01301.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cosmictagger.config.network import Network
from cosmictagger.models.blocks import IMAGES, Block, connection, down, repeated, up

PLANES = 3
CLASSES = 3

Planes = tuple[Tensor, ...]


class BlockSeries(nn.Module):
    """A number of blocks, one after the other."""

    def __init__(self, network: Network, count: int, channels: int, edge: int = 3):
        super().__init__()
        self.blocks = nn.Sequential(*repeated(network, IMAGES, count, channels, edge))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, channels, h, w]``; keeps the shape."""
        return self.blocks(x)


class SharedDeepest(nn.Module):
    """The smallest size: planes meet as channels, the only place where they see each other."""

    def __init__(self, network: Network, channels: int):
        super().__init__()
        wide, narrow = channels, network.bottleneck_deepest
        self.bottleneck = Block(network, IMAGES, wide, narrow, (1, 1))
        self.blocks = BlockSeries(
            network, network.blocks_deepest_layer, narrow, network.filter_size_deepest
        )
        self.unbottleneck = Block(network, IMAGES, narrow, wide, (1, 1))

    def forward(self, planes: Planes) -> Planes:
        """Three of ``[B, C, h, w]``; keeps the shapes."""
        return self._through(torch.cat(planes, dim=1)).chunk(PLANES, dim=1)

    def _through(self, x: Tensor) -> Tensor:
        return self.unbottleneck(self.blocks(self.bottleneck(x)))


class SeparateDeepest(SharedDeepest):
    """The smallest size where planes stay apart (``network.block_concat``)."""

    def forward(self, planes: Planes) -> Planes:
        """Three of ``[B, C, h, w]``; keeps the shapes."""
        return tuple(self._through(plane) for plane in planes)


class Bottom(nn.Module):
    """Below the last level; a module of its own because the original's names have it."""

    def __init__(self, network: Network, channels: int):
        super().__init__()
        self.main_module = (
            SeparateDeepest(network, channels)
            if network.block_concat
            else SharedDeepest(network, PLANES * channels)
        )

    def forward(self, planes: Planes) -> Planes:
        """Three of ``[B, C, h, w]``; keeps the shapes."""
        return self.main_module(planes)


class Level(nn.Module):
    """One size on the way down and on the way up, with everything smaller inside."""

    def __init__(self, network: Network, level: int):
        super().__init__()
        filters, filters_below = network.filters(level), network.filters(level + 1)
        count = network.blocks_per_layer
        self.down_blocks = BlockSeries(network, count, filters)
        self.downsample = down(network, IMAGES, filters, filters_below)
        self.main_module = _below(network, level + 1)
        self.upsample = up(network, IMAGES, filters_below, filters)
        self.up_blocks = BlockSeries(network, count, filters)
        self.connection = connection(network, IMAGES, filters)

    def forward(self, planes: Planes) -> Planes:
        """Three of ``[B, C, h, w]``; keeps the shapes. The skip is what comes in, untouched."""
        smaller = tuple(self.downsample(self.down_blocks(plane)) for plane in planes)
        smaller = self.main_module(smaller)
        return tuple(
            self.up_blocks(self.connection(self.upsample(small), plane))
            for small, plane in zip(smaller, planes, strict=True)
        )


class UResNet(nn.Module):
    """Labels the pixels of three planes. Build it with :func:`cosmictagger.models.build`."""

    def __init__(self, network: Network):
        super().__init__()
        filters = network.n_initial_filters
        self.initial_convolution = Block(network, IMAGES, 1, filters, (5, 5))
        self.net_core = _below(network, 0)
        self.final_layer = BlockSeries(network, network.blocks_final, filters)
        self.bottleneck = nn.Conv2d(filters, CLASSES, kernel_size=1, bias=network.bias)
        self.apply(_initialise)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the classes for each pixel.

        Args:
            image: ``[B, 3, H, W]``, one channel for each plane.

        Returns:
            For each plane ``[B, 3, H, W]``, now with one channel for each class; no softmax.
        """
        planes = tuple(self.initial_convolution(plane) for plane in image.chunk(PLANES, dim=1))
        planes = self.net_core(planes)
        first, second, third = (self.bottleneck(self.final_layer(plane)) for plane in planes)
        return first, second, third


def _below(network: Network, level: int) -> nn.Module:
    """Return what a level has inside: the next one, or the smallest size."""
    if level < network.depth:
        return Level(network, level)
    return Bottom(network, network.filters(level))


def _initialise(module: nn.Module) -> None:
    """Xavier for convolutions (Glorot and Bengio 2010); transposed ones keep torch's default."""
    if isinstance(module, nn.Conv2d):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)

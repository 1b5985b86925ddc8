"""UResNet for volumes: the three planes are slices of one volume.

Kernels are one plane thick, so planes meet only at the smallest size; but each batch
normalisation sees all planes at once, which is where it differs most from ``uresnet``.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from cosmictagger.config.network import Network
from cosmictagger.models.blocks import VOLUMES, Block, connection, down, repeated, up
from cosmictagger.models.uresnet import CLASSES, PLANES


def series(network: Network, count: int, channels: int, edge: int = 3) -> nn.Sequential:
    """Return a number of blocks, one after the other, under the names the original gives them."""
    blocks = repeated(network, VOLUMES, count, channels, edge)
    return nn.Sequential(OrderedDict((f"block_{i}", block) for i, block in enumerate(blocks)))


class Deepest3D(nn.Module):
    """The smallest size: the kernels that change the channels also reach over the planes."""

    def __init__(self, network: Network, channels: int):
        super().__init__()
        narrow, across = network.bottleneck_deepest, (PLANES, 1, 1)
        self.merger = Block(network, VOLUMES, channels, narrow, across)
        self.blocks = series(
            network, network.blocks_deepest_layer, narrow, network.filter_size_deepest
        )
        self.splitter = Block(network, VOLUMES, narrow, channels, across)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, 3, h, w]``; keeps the shape."""
        return self.splitter(self.blocks(self.merger(x)))


class Bottom3D(nn.Module):
    """Below the last level; a module of its own because the original's names have it."""

    def __init__(self, network: Network, channels: int):
        super().__init__()
        self.main_module = Deepest3D(network, channels)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, 3, h, w]``; keeps the shape."""
        return self.main_module(x)


class Level3D(nn.Module):
    """One size on the way down and on the way up, with everything smaller inside."""

    def __init__(self, network: Network, level: int):
        super().__init__()
        filters, filters_below = network.filters(level), network.filters(level + 1)
        count = network.blocks_per_layer
        self.down_blocks = series(network, count, filters)
        self.downsample = down(network, VOLUMES, filters, filters_below)
        self.main_module = _below(network, level + 1)
        self.upsample = up(network, VOLUMES, filters_below, filters)
        self.up_blocks = series(network, count, filters)
        self.connection = connection(network, VOLUMES, filters)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, 3, h, w]``; keeps the shape. The skip is what the way down made of it."""
        skip = self.down_blocks(x)
        x = self.upsample(self.main_module(self.downsample(skip)))
        return self.connection(self.up_blocks(x), skip)


class UResNet3D(nn.Module):
    """Labels the pixels of a volume. Build it with :func:`cosmictagger.models.build`."""

    def __init__(self, network: Network):
        super().__init__()
        filters = network.n_initial_filters
        self.initial_convolution = Block(network, VOLUMES, 1, filters, VOLUMES.extent(5))
        self.net_core = _below(network, 0)
        self.final_layer = series(network, network.blocks_final, filters)
        self.bottleneck = nn.Conv3d(filters, CLASSES, kernel_size=1, bias=network.bias)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the classes for each pixel.

        Args:
            image: ``[B, 3, H, W]``, one channel for each plane.

        Returns:
            For each plane ``[B, 3, H, W]``, now with one channel for each class; no softmax.
        """
        volume = self.net_core(self.initial_convolution(image.unsqueeze(1)))
        first, second, third = self.bottleneck(self.final_layer(volume)).unbind(dim=2)
        return first, second, third


def _below(network: Network, level: int) -> nn.Module:
    """Return what a level has inside: the next one, or the smallest size."""
    if level < network.depth:
        return Level3D(network, level)
    return Bottom3D(network, network.filters(level))

"""The pieces of a UResNet, for images and for volumes of planes.

The names of submodules are those of CosmicTagger, so that its checkpoints load.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn

from cosmictagger.config.network import Connection, DownSampling, Network, Norm, UpSampling

SLOPE = 0.01  # of the leaky ReLU below zero


@dataclasses.dataclass(frozen=True)
class Dimensions:
    """The layers of a kind of network, and what a square kernel means to them.

    Attributes:
        conv: a convolution.
        conv_transpose: a transposed convolution.
        norm: batch normalisation.
        pool: max pooling.
        extent: an edge in pixels as a shape; volumes have 1 along planes.
        interpolation: how an image is doubled without weights.
        resampled: the activation after convolutions that halve or double.
    """

    conv: type[nn.Conv2d] | type[nn.Conv3d]
    conv_transpose: type[nn.ConvTranspose2d] | type[nn.ConvTranspose3d]
    norm: type[nn.BatchNorm2d] | type[nn.BatchNorm3d]
    pool: type[nn.MaxPool2d] | type[nn.MaxPool3d]
    extent: Callable[[int], tuple[int, ...]]
    interpolation: str
    resampled: Callable[[], nn.Module]


def leaky() -> nn.Module:
    """Return the activation of every ordinary block."""
    return nn.LeakyReLU(negative_slope=SLOPE)


IMAGES = Dimensions(
    conv=nn.Conv2d,
    conv_transpose=nn.ConvTranspose2d,
    norm=nn.BatchNorm2d,
    pool=nn.MaxPool2d,
    extent=lambda edge: (edge, edge),
    interpolation="bilinear",
    resampled=leaky,
)
VOLUMES = Dimensions(
    conv=nn.Conv3d,
    conv_transpose=nn.ConvTranspose3d,
    norm=nn.BatchNorm3d,
    pool=nn.MaxPool3d,
    extent=lambda edge: (1, edge, edge),
    interpolation="nearest",
    resampled=nn.ReLU,
)


class Block(nn.Module):
    """Convolution, normalisation, activation.

    Args:
        network: whether there is a bias and a normalisation.
        dimensions: images or volumes.
        inputs: channels in.
        outputs: channels out.
        kernel: shape of the kernel; padding keeps the size of the image.
        activation: what comes last; None for nothing.
    """

    def __init__(
        self,
        network: Network,
        dimensions: Dimensions,
        inputs: int,
        outputs: int,
        kernel: tuple[int, ...],
        activation: Callable[[], nn.Module] | None = leaky,
    ):
        super().__init__()
        padding = tuple(edge // 2 for edge in kernel)
        self.conv = dimensions.conv(
            inputs,
            outputs,
            kernel,  # type: ignore[arg-type]  # the length fits the class
            padding=padding,  # type: ignore[arg-type]
            bias=network.bias,
        )
        self.norm = _norm(network, dimensions, outputs)
        self.activation = nn.Identity() if activation is None else activation()

    def forward(self, x: Tensor) -> Tensor:
        """``[B, inputs, ...]`` to ``[B, outputs, ...]``."""
        return self.activation(self.norm(self.conv(x)))


class Resampling(nn.Module):
    """A convolution of 2 x 2 that halves the image, or doubles it; normalisation, activation."""

    def __init__(
        self, network: Network, dimensions: Dimensions, inputs: int, outputs: int, up: bool
    ):
        super().__init__()
        kind = dimensions.conv_transpose if up else dimensions.conv
        edges = dimensions.extent(2)
        self.conv = kind(inputs, outputs, edges, stride=edges, bias=network.bias)  # type: ignore[arg-type]
        self.norm = _norm(network, dimensions, outputs)
        self.activation = dimensions.resampled()

    def forward(self, x: Tensor) -> Tensor:
        """``[B, inputs, ..., H, W]`` to ``[B, outputs, ..., H / 2, W / 2]``, or ``2 H, 2 W``."""
        return self.activation(self.norm(self.conv(x)))


class ResidualBlock(nn.Module):
    """Two blocks around which the input is added (He et al., arXiv:1512.03385)."""

    def __init__(
        self, network: Network, dimensions: Dimensions, channels: int, kernel: tuple[int, ...]
    ):
        super().__init__()
        self.convolution_1 = Block(network, dimensions, channels, channels, kernel)
        self.convolution_2 = Block(network, dimensions, channels, channels, kernel, None)
        self.activation = leaky()

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        return self.activation(self.convolution_2(self.convolution_1(x)) + x)


def repeated(
    network: Network, dimensions: Dimensions, count: int, channels: int, edge: int = 3
) -> list[nn.Module]:
    """Blocks of ``edge`` x ``edge`` pixels that keep the shape, residual if the network says so."""
    kernel = dimensions.extent(edge)
    return [
        ResidualBlock(network, dimensions, channels, kernel)
        if network.residual
        else Block(network, dimensions, channels, channels, kernel)
        for _ in range(count)
    ]


class PoolingDown(nn.Module):
    """Halves by the largest of 2 x 2 pixels, then changes the channels."""

    def __init__(self, network: Network, dimensions: Dimensions, inputs: int, outputs: int):
        super().__init__()
        self.pool = dimensions.pool(dimensions.extent(2))  # type: ignore[arg-type]
        self.bottleneck = Block(network, dimensions, inputs, outputs, dimensions.extent(1))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, inputs, ..., H, W]`` to ``[B, outputs, ..., H / 2, W / 2]``."""
        return self.bottleneck(self.pool(x))


class InterpolationUp(nn.Module):
    """Doubles by interpolation, then changes the channels."""

    def __init__(self, network: Network, dimensions: Dimensions, inputs: int, outputs: int):
        super().__init__()
        factors = tuple(map(float, dimensions.extent(2)))
        self.up = nn.Upsample(scale_factor=factors, mode=dimensions.interpolation)
        self.bottleneck = Block(network, dimensions, inputs, outputs, dimensions.extent(1))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, inputs, ..., H, W]`` to ``[B, outputs, ..., 2 H, 2 W]``."""
        return self.bottleneck(self.up(x))


class SumConnection(nn.Module):
    """Adds what the way down saw."""

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Keeps the shape, which both have."""
        return x + skip


class NoConnection(nn.Module):
    """Forgets what the way down saw."""

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Returns the first."""
        return x


class ConcatConnection(nn.Module):
    """Puts what the way down saw behind the channels, and learns what to keep of both."""

    def __init__(self, network: Network, dimensions: Dimensions, channels: int):
        super().__init__()
        self.bottleneck = Block(network, dimensions, 2 * channels, channels, dimensions.extent(1))

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Keeps the shape, which both have."""
        return self.bottleneck(torch.cat([x, skip], dim=1))


def down(network: Network, dimensions: Dimensions, inputs: int, outputs: int) -> nn.Module:
    """Return what halves an image."""
    if network.downsampling is DownSampling.convolutional:
        return Resampling(network, dimensions, inputs, outputs, up=False)
    return PoolingDown(network, dimensions, inputs, outputs)


def up(network: Network, dimensions: Dimensions, inputs: int, outputs: int) -> nn.Module:
    """Return what doubles an image."""
    if network.upsampling is UpSampling.convolutional:
        return Resampling(network, dimensions, inputs, outputs, up=True)
    return InterpolationUp(network, dimensions, inputs, outputs)


def connection(network: Network, dimensions: Dimensions, channels: int) -> nn.Module:
    """Return what brings the way down and the way up together."""
    if network.connections is Connection.concat:
        return ConcatConnection(network, dimensions, channels)
    return SumConnection() if network.connections is Connection.sum else NoConnection()


def _norm(network: Network, dimensions: Dimensions, channels: int) -> nn.Module:
    return dimensions.norm(channels) if network.normalization is Norm.batch else nn.Identity()

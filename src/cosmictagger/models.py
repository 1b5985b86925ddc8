"""The networks, UResNet for images and for volumes of planes, and a check of image sizes."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cosmictagger.config.network import (
    BlockStyle,
    Connection,
    ConvMode,
    DownSampling,
    Network,
    Norm,
    UpSampling,
)
from cosmictagger.errors import ConfigError
from cosmictagger.measures import EVENT_CLASSES, Loss, total

SLOPE = 0.01  # of the leaky ReLU below zero


@dataclasses.dataclass(frozen=True)
class Dimensions:
    """The layer types of a 2D or 3D network, and its kernel shapes.

    Attributes:
        conv: a convolution.
        conv_transpose: a transposed convolution.
        batch_norm: batch normalisation.
        pool: max pooling.
        extent: an edge in pixels as a shape; volumes have 1 along planes.
        interpolation: how an image is doubled without weights.
        resampled: the activation after convolutions that halve or double.
    """

    conv: type[nn.Conv2d] | type[nn.Conv3d]
    conv_transpose: type[nn.ConvTranspose2d] | type[nn.ConvTranspose3d]
    batch_norm: type[nn.BatchNorm2d] | type[nn.BatchNorm3d]
    pool: type[nn.MaxPool2d] | type[nn.MaxPool3d]
    extent: Callable[[int], tuple[int, ...]]
    interpolation: str
    resampled: Callable[[], nn.Module]


def leaky() -> nn.Module:
    """Return the leaky ReLU activation of ordinary convolution blocks."""
    return nn.LeakyReLU(negative_slope=SLOPE)


IMAGES = Dimensions(
    conv=nn.Conv2d,
    conv_transpose=nn.ConvTranspose2d,
    batch_norm=nn.BatchNorm2d,
    pool=nn.MaxPool2d,
    extent=lambda edge: (edge, edge),
    interpolation="bilinear",
    resampled=leaky,
)
VOLUMES = Dimensions(
    conv=nn.Conv3d,
    conv_transpose=nn.ConvTranspose3d,
    batch_norm=nn.BatchNorm3d,
    pool=nn.MaxPool3d,
    extent=lambda edge: (1, edge, edge),
    interpolation="nearest",
    resampled=nn.ReLU,
)


class Block(nn.Module):
    """A convolution block: convolution, normalisation, activation.

    Args:
        network: whether there is a bias and a normalisation.
        dimensions: images or volumes.
        inputs: channels in.
        outputs: channels out.
        kernel: shape of the kernel; padding keeps the size of the image.
        activation: what comes last; None for nothing.
        groups: of channels that the convolution keeps apart.
    """

    def __init__(
        self,
        network: Network,
        dimensions: Dimensions,
        inputs: int,
        outputs: int,
        kernel: tuple[int, ...],
        activation: Callable[[], nn.Module] | None = leaky,
        groups: int = 1,
    ):
        super().__init__()
        padding = tuple(edge // 2 for edge in kernel)
        self.conv = dimensions.conv(
            inputs,
            outputs,
            kernel,  # type: ignore[arg-type]  # the length fits the class
            padding=padding,  # type: ignore[arg-type]
            bias=network.bias,
            groups=groups,
        )
        self.norm = _norm(network, dimensions, outputs)
        self.activation = nn.Identity() if activation is None else activation()

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, outputs, ...]`` for ``[B, inputs, ...]``."""
        return self.activation(self.norm(self.conv(x)))


class Resampling(nn.Module):
    """A 2 x 2 convolution that halves or doubles the image, with normalisation and activation."""

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
        """Return ``[B, outputs, ..., H / 2, W / 2]``, or ``2 H, 2 W`` if upsampling."""
        return self.activation(self.norm(self.conv(x)))


class ResidualBlock(nn.Module):
    """A residual block of two convolution blocks (He et al., arXiv:1512.03385)."""

    def __init__(
        self, network: Network, dimensions: Dimensions, channels: int, kernel: tuple[int, ...]
    ):
        super().__init__()
        self.convolution_1 = Block(network, dimensions, channels, channels, kernel)
        self.convolution_2 = Block(network, dimensions, channels, channels, kernel, None)
        self.activation = leaky()

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return self.activation(self.convolution_2(self.convolution_1(x)) + x)


class ConvNeXtBlock(nn.Module):
    """A block that widens its channels fourfold inside (Liu et al., arXiv:2201.03545)."""

    def __init__(
        self, network: Network, dimensions: Dimensions, channels: int, kernel: tuple[int, ...]
    ):
        super().__init__()
        wide, point = 4 * channels, dimensions.extent(1)
        groups = channels if network.depthwise else 1
        self.convolution_1 = Block(network, dimensions, channels, channels, kernel, None, groups)
        self.convolution_2 = Block(network, dimensions, channels, wide, point)
        self.convolution_3 = Block(network, dimensions, wide, channels, point, None)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return self.convolution_3(self.convolution_2(self.convolution_1(x))) + x


def repeated(
    network: Network, dimensions: Dimensions, count: int, channels: int, edge: int | None = None
) -> list[nn.Module]:
    """Return ``count`` blocks of the configured style, which keep the shape.

    Args:
        network: their style and what follows each convolution.
        dimensions: images or volumes.
        count: how many.
        channels: in and out.
        edge: of the kernels; None for ``network.kernel``.
    """
    kernel = dimensions.extent(network.kernel if edge is None else edge)
    if network.block_style is BlockStyle.none:
        return [Block(network, dimensions, channels, channels, kernel) for _ in range(count)]
    kind = ResidualBlock if network.block_style is BlockStyle.residual else ConvNeXtBlock
    return [kind(network, dimensions, channels, kernel) for _ in range(count)]


class PoolingDown(nn.Module):
    """Downsampling by 2 x 2 max pooling, then a convolution that changes the channels."""

    def __init__(self, network: Network, dimensions: Dimensions, inputs: int, outputs: int):
        super().__init__()
        self.pool = dimensions.pool(dimensions.extent(2))  # type: ignore[arg-type]
        self.bottleneck = Block(network, dimensions, inputs, outputs, dimensions.extent(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, outputs, ..., H / 2, W / 2]`` for ``[B, inputs, ..., H, W]``."""
        return self.bottleneck(self.pool(x))


class InterpolationUp(nn.Module):
    """Upsampling by interpolation, then a convolution that changes the channels."""

    def __init__(self, network: Network, dimensions: Dimensions, inputs: int, outputs: int):
        super().__init__()
        factors = tuple(map(float, dimensions.extent(2)))
        self.up = nn.Upsample(scale_factor=factors, mode=dimensions.interpolation)
        self.bottleneck = Block(network, dimensions, inputs, outputs, dimensions.extent(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, outputs, ..., 2 H, 2 W]`` for ``[B, inputs, ..., H, W]``."""
        return self.bottleneck(self.up(x))


class SumConnection(nn.Module):
    """Skip connection that adds the encoder's activations."""

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Return the sum of both inputs; all shapes are equal."""
        return x + skip


class NoConnection(nn.Module):
    """Skip connection that ignores the encoder's activations."""

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Return the decoder's activations unchanged."""
        return x


class ConcatConnection(nn.Module):
    """Skip connection that concatenates the encoder's channels, then mixes both by convolution."""

    def __init__(self, network: Network, dimensions: Dimensions, channels: int):
        super().__init__()
        self.bottleneck = Block(network, dimensions, 2 * channels, channels, dimensions.extent(1))

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Return the convolution of both inputs; all shapes are equal."""
        return self.bottleneck(torch.cat([x, skip], dim=1))


def down(network: Network, dimensions: Dimensions, inputs: int, outputs: int) -> nn.Module:
    """Return the configured downsampling module, which halves an image."""
    if network.downsampling is DownSampling.convolutional:
        return Resampling(network, dimensions, inputs, outputs, up=False)
    return PoolingDown(network, dimensions, inputs, outputs)


def up(network: Network, dimensions: Dimensions, inputs: int, outputs: int) -> nn.Module:
    """Return the configured upsampling module, which doubles an image."""
    if network.upsampling is UpSampling.convolutional:
        return Resampling(network, dimensions, inputs, outputs, up=True)
    return InterpolationUp(network, dimensions, inputs, outputs)


def connection(network: Network, dimensions: Dimensions, channels: int) -> nn.Module:
    """Return the configured skip connection between encoder and decoder."""
    if network.connections is Connection.concat:
        return ConcatConnection(network, dimensions, channels)
    return SumConnection() if network.connections is Connection.sum else NoConnection()


class Standardized(nn.Module):
    """A normalisation of each image by its own mean and variance, without weights.

    Args:
        by_channel: each channel by itself (``instance``), or all together (``layer``); a volume's
            planes together in both cases.
    """

    def __init__(self, *, by_channel: bool):
        super().__init__()
        self.by_channel = by_channel

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(x - mean) / sqrt(variance + 1e-5)`` of ``[B, C, ...]``."""
        return functional.group_norm(x, x.shape[1] if self.by_channel else 1)


GROUPS = 4  # of ``normalization=group``


def _norm(network: Network, dimensions: Dimensions, channels: int) -> nn.Module:
    kind = network.normalization
    if kind is Norm.batch:
        return dimensions.batch_norm(channels)
    if kind is Norm.none:
        return nn.Identity()
    if kind is not Norm.group:
        return Standardized(by_channel=kind is Norm.instance)
    if channels % GROUPS:
        raise ConfigError(
            f"network.normalization=group was asked for, which makes {GROUPS} groups of channels, "
            f"but a layer has {channels}. Choose multiples of {GROUPS} for "
            "network.n_initial_filters, bottleneck_deepest and the n_filters of heads."
        )
    return nn.GroupNorm(GROUPS, channels)


PLANES = 3
CLASSES = 3

Planes = tuple[Tensor, ...]
Seen = list[Planes] | None
"""Results of the levels for the heads, the smallest size first; None without heads."""


class BlockSeries(nn.Module):
    """A sequence of convolution blocks."""

    def __init__(self, network: Network, count: int, channels: int, edge: int | None = None):
        super().__init__()
        self.blocks = nn.Sequential(*repeated(network, IMAGES, count, channels, edge))

    def forward(self, x: Tensor) -> Tensor:
        """Apply all blocks to ``[B, channels, h, w]``; keeps the shape."""
        return self.blocks(x)


class SharedDeepest(nn.Module):
    """The deepest level, with planes concatenated as channels; planes mix only here."""

    def __init__(self, network: Network, channels: int):
        super().__init__()
        wide, narrow = channels, network.bottleneck_deepest
        self.bottleneck = Block(network, IMAGES, wide, narrow, (1, 1))
        self.blocks = BlockSeries(
            network, network.blocks_deepest_layer, narrow, network.filter_size_deepest
        )
        self.unbottleneck = Block(network, IMAGES, narrow, wide, (1, 1))

    def forward(self, planes: Planes) -> Planes:
        """Apply the deepest level to three ``[B, C, h, w]`` planes; keeps the shapes."""
        return self._through(torch.cat(planes, dim=1)).chunk(PLANES, dim=1)

    def _through(self, x: Tensor) -> Tensor:
        return self.unbottleneck(self.blocks(self.bottleneck(x)))


class SeparateDeepest(SharedDeepest):
    """The deepest level with separate planes (``network.block_concat``)."""

    def forward(self, planes: Planes) -> Planes:
        """Apply the deepest level to three ``[B, C, h, w]`` planes; keeps the shapes."""
        return tuple(self._through(plane) for plane in planes)


class Bottom(nn.Module):
    """A wrapper of the deepest level, for the original's parameter names."""

    def __init__(self, deepest: nn.Module):
        super().__init__()
        self.main_module = deepest

    def forward(self, x: Any, seen: Seen = None) -> Any:
        """Apply the deepest level to three planes or a volume; keeps the shapes."""
        return _noted(self.main_module(x), seen)


def _noted(planes: Any, seen: Seen) -> Any:
    if seen is not None:
        seen.append(planes)
    return planes


class _Level(nn.Module):
    """Encoder and decoder blocks of a size, with all smaller levels inside."""

    dimensions: Dimensions

    def __init__(self, network: Network, level: int):
        super().__init__()
        kind, count = self.dimensions, network.blocks_per_layer
        filters, filters_below = network.filters(level), network.filters(level + 1)
        blocks = BlockSeries if kind is IMAGES else series
        self.down_blocks = blocks(network, count, filters)
        self.downsample = down(network, kind, filters, filters_below)
        self.main_module = _below(network, level + 1, kind)
        self.upsample = up(network, kind, filters_below, filters)
        self.up_blocks = blocks(network, count, filters)
        self.connection = connection(network, kind, filters)


class Level(_Level):
    """A level of the U-Net of separate planes."""

    dimensions = IMAGES

    def forward(self, planes: Planes, seen: Seen = None) -> Planes:
        """Apply the level to three ``[B, C, h, w]`` planes; keeps the shapes. Skip: the input."""
        smaller = tuple(self.downsample(self.down_blocks(plane)) for plane in planes)
        smaller = self.main_module(smaller, seen)
        result = tuple(
            self.up_blocks(self.connection(self.upsample(small), plane))
            for small, plane in zip(smaller, planes, strict=True)
        )
        return _noted(result, seen)


class UResNet(nn.Module):
    """U-Net that labels the pixels of three planes; see :func:`cosmictagger.models.build`."""

    def __init__(self, network: Network):
        super().__init__()
        filters = network.n_initial_filters
        self.initial_convolution = Block(network, IMAGES, 1, filters, (5, 5))
        self.net_core = _below(network, 0, IMAGES)
        self.final_layer = BlockSeries(network, network.blocks_final, filters)
        self.bottleneck = nn.Conv2d(filters, CLASSES, kernel_size=1, bias=network.bias)
        self.apply(_initialise)
        self.classification, self.vertex = network.classification, network.vertex
        before = len(list(self.children()))
        if network.classification.active:
            self._add_classifier(network)
        if network.vertex.active:
            self._add_vertex(network)
        # After all others, which so start as they do without heads.
        for head in list(self.children())[before:]:
            head.apply(_initialise)

    def _add_classifier(self, network: Network) -> None:
        head, inputs = network.classification, PLANES * network.filters(network.depth)
        self.classifier_input = nn.Conv2d(inputs, head.n_filters, 1, bias=network.bias)
        self.classifier = BlockSeries(network, head.n_layers, head.n_filters)
        # The original's spelling, which its checkpoints have.
        self.bottleneck_classifer = nn.Conv2d(
            head.n_filters, len(EVENT_CLASSES), 1, bias=network.bias
        )

    def _add_vertex(self, network: Network) -> None:
        head = network.vertex
        inputs = network.filters(network.depth - head.depth)
        self.vertex_input = nn.Conv2d(inputs, head.n_filters, 1, bias=network.bias)
        self.vertex_layers = BlockSeries(network, head.n_layers, head.n_filters)
        self.bottleneck_vertex = nn.Conv2d(head.n_filters, 3, 1, bias=network.bias)

    def forward(self, image: Tensor) -> Planes:
        """Return the logits of the classes for each pixel, and what the heads say.

        Args:
            image: ``[B, 3, H, W]``, one channel for each plane.

        Returns:
            For each plane ``[B, 3, H, W]``, now with one channel for each class; no softmax. With
            heads then the logits of the event's label, ``[B, 4]``, and for each plane
            ``[B, 3, h, w]``: for each box the score of having the vertex, and the place in it
            (row, column), all from 0 to 1. See :func:`cosmictagger.measures.parted`.
        """
        seen: Seen = [] if self.classification.active or self.vertex.active else None
        planes = tuple(self.initial_convolution(plane) for plane in image.chunk(PLANES, dim=1))
        planes = self.net_core(planes, seen)
        scores = tuple(self.bottleneck(self.final_layer(plane)) for plane in planes)
        return scores if seen is None else (*scores, *self._heads(seen))

    def _heads(self, seen: list[Planes]) -> Planes:
        results: list[Tensor] = []
        if self.classification.active:
            x = _cut(torch.cat(seen[0], dim=1), detach=self.classification.detach)
            x = self.bottleneck_classifer(self.classifier(self.classifier_input(x)))
            results.append(x.mean(dim=(2, 3)))
        if self.vertex.active:
            for plane in seen[self.vertex.depth]:
                x = self.vertex_input(_cut(plane, detach=self.vertex.detach))
                results.append(self.bottleneck_vertex(self.vertex_layers(x)).sigmoid())
        return tuple(results)


def _cut(x: Tensor, *, detach: bool) -> Tensor:
    return x.detach() if detach else x


def _below(network: Network, level: int, kind: Dimensions) -> nn.Module:
    """Return the module inside a level: the next level, or the deepest level."""
    if level < network.depth:
        return Level(network, level) if kind is IMAGES else Level3D(network, level)
    filters = network.filters(level)
    if kind is VOLUMES:
        return Bottom(Deepest3D(network, filters))
    if network.block_concat:
        return Bottom(SeparateDeepest(network, filters))
    return Bottom(SharedDeepest(network, PLANES * filters))


def _initialise(module: nn.Module) -> None:
    """Initialize convolutions by Xavier (Glorot and Bengio 2010); not transposed ones."""
    if isinstance(module, nn.Conv2d):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def series(network: Network, count: int, channels: int, edge: int | None = None) -> nn.Sequential:
    """Return a sequence of convolution blocks, named as in the original network."""
    blocks = repeated(network, VOLUMES, count, channels, edge)
    return nn.Sequential(OrderedDict((f"block_{i}", block) for i, block in enumerate(blocks)))


class Deepest3D(nn.Module):
    """The deepest level of the 3D network; its bottleneck kernels also span the planes."""

    def __init__(self, network: Network, channels: int):
        super().__init__()
        narrow, across = network.bottleneck_deepest, (PLANES, 1, 1)
        self.merger = Block(network, VOLUMES, channels, narrow, across)
        self.blocks = series(
            network, network.blocks_deepest_layer, narrow, network.filter_size_deepest
        )
        self.splitter = Block(network, VOLUMES, narrow, channels, across)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the deepest level to a volume ``[B, C, 3, h, w]``; keeps the shape."""
        return self.splitter(self.blocks(self.merger(x)))


class Level3D(_Level):
    """A level of the 3D U-Net."""

    dimensions = VOLUMES

    def forward(self, x: Tensor) -> Tensor:
        """Apply the level to ``[B, C, 3, h, w]``; keeps the shape. Skip: the encoder's output."""
        skip = self.down_blocks(x)
        x = self.upsample(self.main_module(self.downsample(skip)))
        return self.connection(self.up_blocks(x), skip)


class UResNet3D(nn.Module):
    """3D U-Net that labels the pixels of a volume; see :func:`cosmictagger.models.build`."""

    def __init__(self, network: Network):
        super().__init__()
        filters = network.n_initial_filters
        self.initial_convolution = Block(network, VOLUMES, 1, filters, VOLUMES.extent(5))
        self.net_core = _below(network, 0, VOLUMES)
        self.final_layer = series(network, network.blocks_final, filters)
        self.bottleneck = nn.Conv3d(filters, CLASSES, kernel_size=1, bias=network.bias)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits of the classes for each pixel.

        Args:
            image: ``[B, 3, H, W]``, one channel for each plane.

        Returns:
            For each plane ``[B, 3, H, W]``, now with one channel for each class; no softmax.
        """
        volume = self.net_core(self.initial_convolution(image.unsqueeze(1)))
        first, second, third = self.bottleneck(self.final_layer(volume)).unbind(dim=2)
        return first, second, third


class LossInForward(nn.Module):
    """A module that computes a network's outputs and loss in its forward pass.

    Args:
        network: from ``[B, 3, H, W]`` to three of ``[B, 3, H, W]`` and what its heads give.
        loss: gives the parts of the loss for outputs and targets.
        mark: applied to the loss before it is returned; where a front-end wants to be told which
            value is the loss, its function for that.
    """

    def __init__(
        self, network: nn.Module, loss: Loss, mark: Callable[[Tensor], Tensor] | None = None
    ):
        super().__init__()
        self.network = network
        self.loss = loss
        self._mark = mark

    def forward(self, image: Tensor, *targets: Tensor) -> tuple[Tensor, ...]:
        """Return the network's outputs and the loss; where that has parts, these before it.

        Args:
            image: ``[B, 3, H, W]``.
            targets: int64 ``[B, 3, H, W]``, and those of heads; see ``Loss``.
        """
        outputs = self.network(image)
        parts = self.loss.parts(outputs, *targets)
        loss = total(parts)
        loss = loss if self._mark is None else self._mark(loss)
        return (*outputs, *parts, loss) if len(parts) > 1 else (*outputs, loss)


FULL_SIZE = (1280, 2048)  # rows (time) and columns (wires) of an SBND image


def check_image_size(
    network: Network, image_size: tuple[int, int], stored: tuple[int, int] = FULL_SIZE
) -> None:
    """Raise if an image size is not divisible by the network's downsampling."""
    rows, columns = image_size
    factor = 2**network.depth
    if rows > 0 and columns > 0 and rows % factor == 0 and columns % factor == 0:
        return
    fitting = [str(k) for k in range(16) if all(edge % (factor << k) == 0 for edge in stored)]
    raise ConfigError(
        f"A network of depth {network.depth} halves the image {network.depth} times, so rows and "
        f"columns must be multiples of {factor}, but the image has {rows} x {columns}. Choose a "
        f"smaller network.depth, or for images of {stored[0]} x {stored[1]} a data.downsample of "
        f"{', '.join(fitting) or 'none'}."
    )


def build(network: Network, image_size: tuple[int, int]) -> nn.Module:
    """Build the network of a configuration with random initial weights.

    Returns:
        A module from ``[B, 3, H, W]`` to three of ``[B, 3, H, W]``: for each plane the scores of
        background, cosmic and neutrino; then what heads give.
    """
    check_image_size(network, image_size)
    if network.conv_mode is ConvMode.conv_3D:
        return UResNet3D(network)
    return UResNet(network)

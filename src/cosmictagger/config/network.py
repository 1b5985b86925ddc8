"""The ``network.*`` configuration keys and the named networks.

Keys, defaults, and the names and numbers of the enumerations are those of CosmicTagger
(https://github.com/coreyjadams/CosmicTagger), so that its command lines and presets mean the same;
blocks, kernels, normalisations and heads are those of its version 2.1.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from cosmictagger.errors import ConfigError


class ConvMode(enum.Enum):
    """Dimensionality of convolutions: planes as images that share weights, or as one volume."""

    conv_2D = 0  # noqa: N815  the original spells it so
    conv_3D = 1  # noqa: N815


class Norm(enum.Enum):
    """The normalisation after each convolution.

    Batch and group have trained factors; layer (over the channels and pixels of an image) and
    instance (over the pixels of a channel) have none, as in the original.
    """

    none = 0
    batch = 1
    layer = 2
    group = 3
    instance = 4


class BlockStyle(enum.Enum):
    """The kind of all blocks: one convolution, a residual pair, or a ConvNeXt block of three."""

    none = 0
    residual = 1
    convnext = 2


class Connection(enum.Enum):
    """The skip connection between encoder and decoder at one level."""

    concat = 0
    sum = 1
    none = 2


class GrowthRate(enum.Enum):
    """Growth of filters at level i from n initial filters: ``n * 2**i`` or ``n * (i + 1)``."""

    multiplicative = 0
    additive = 1


class DownSampling(enum.Enum):
    """The layer that halves an image."""

    convolutional = 0
    max_pooling = 1


class UpSampling(enum.Enum):
    """The layer that doubles an image."""

    convolutional = 0
    interpolation = 1


Member = TypeVar("Member", bound=enum.Enum)


def member(kind: type[Member], value: Any, key: str) -> Member:
    """Return the member of an enumeration that a name, a number or a member stands for.

    Args:
        kind: the enumeration.
        value: a member, its name, or its number (also as a string, as a command line has it).
        key: how the user calls this setting; for the message.
    """
    if isinstance(value, kind):
        return value
    for candidate in kind:
        if str(value).removeprefix(f"{kind.__name__}.") in (candidate.name, str(candidate.value)):
            return candidate
    choices = ", ".join(f"{candidate.name} ({candidate.value})" for candidate in kind)
    raise ConfigError(
        f"{key}={value} was asked for, but there is no such choice. Known: {choices}."
    )


_CHOICES: Mapping[str, type[enum.Enum]] = {
    "normalization": Norm,
    "block_style": BlockStyle,
    "connections": Connection,
    "conv_mode": ConvMode,
    "growth_rate": GrowthRate,
    "downsampling": DownSampling,
    "upsampling": UpSampling,
}
_LOWEST = {
    "n_initial_filters": 1,
    "blocks_per_layer": 0,
    "blocks_deepest_layer": 0,
    "blocks_final": 0,
    "depth": 1,
    "filter_size_deepest": 1,
    "bottleneck_deepest": 1,
    "kernel_size": 1,
}


@dataclasses.dataclass
class EventLabel:
    """The head that tells which neutrino, if any, an event has.

    Attributes:
        active: whether the network has it.
        detach: its loss trains the head alone, not what the head reads.
        weight: factor on its loss.
        n_filters: filters of its blocks.
        n_layers: how many blocks.
    """

    active: bool = False
    detach: bool = True
    weight: float = 0.01
    n_filters: int = 128
    n_layers: int = 4


@dataclasses.dataclass
class Vertex:
    """The head that finds the neutrino's vertex in each plane: an anchor box and a place in it.

    Attributes:
        active: whether the network has it.
        detach: its loss trains the head alone, not what the head reads.
        depth: the level that it reads, counted from the smallest size, which is 0; the image has
            as many boxes as that level has pixels.
        weight: factor on both of its losses.
        n_layers: how many blocks.
        n_filters: filters of its blocks.
        l_det: another factor on the loss of the box.
        l_coord: another factor on the loss of the place in the box.
    """

    active: bool = False
    detach: bool = True
    depth: int = 2
    weight: float = 1.0
    n_layers: int = 4
    n_filters: int = 128
    l_det: float = 0.1
    l_coord: float = 0.1


_HEADS: Mapping[str, type[Any]] = {"classification": EventLabel, "vertex": Vertex}
_LOWEST_OF_HEADS = {
    "n_filters": 1,
    "n_layers": 0,
    "depth": 0,
    "weight": 0,
    "l_det": 0,
    "l_coord": 0,
}


@dataclasses.dataclass
class Network:
    """The architecture of a UResNet: filters, depth, blocks, connections.

    Attributes:
        name: what the run's folders call it.
        bias: whether convolutions have a bias.
        normalization: what follows each convolution.
        n_initial_filters: filters at full size.
        blocks_per_layer: blocks at each level, on the way down and again on the way up.
        blocks_deepest_layer: blocks at the smallest size.
        blocks_final: blocks at full size before the scores.
        depth: how often the image is halved.
        filter_size_deepest: edge of the kernels at the smallest size, in pixels; odd; becomes
            kernel_size where that is given.
        bottleneck_deepest: filters of those blocks.
        kernel_size: edge of the kernels of all blocks, in pixels, those at the smallest size
            included, as in version 2.1; odd. Not given: 3, at the smallest size
            filter_size_deepest.
        block_style: one convolution, a residual pair, or three as in ConvNeXt.
        residual: the older name of block_style: True for residual, False for none.
        depthwise: the first convolution of a ConvNeXt block works on each channel by itself.
        block_concat: the planes do not meet at the smallest size (2D only).
        weight_decay: kept for its name; PyTorch runs of the original ignore it, and so do we.
        connections: how the way up takes in what the way down saw.
        conv_mode: planes as images, or as one volume.
        growth_rate: how filters grow from level to level.
        downsampling: how an image is halved.
        upsampling: how an image is doubled.
        data_format: kept for its name. Images are always ``[B, 3, H, W]``; how they lie in memory
            is for the backend to choose.
        vertex: the head that finds vertices (2D only).
        classification: the head that classifies events (2D only).
    """

    name: str = "default"
    bias: bool = True
    normalization: Norm = Norm.batch
    n_initial_filters: int = 16
    blocks_per_layer: int = 2
    blocks_deepest_layer: int = 5
    blocks_final: int = 5
    depth: int = 6
    filter_size_deepest: int = 5
    bottleneck_deepest: int = 256
    kernel_size: int | None = None
    block_style: BlockStyle = BlockStyle.residual
    residual: bool | None = None
    depthwise: bool = True
    block_concat: bool = False
    weight_decay: float = 0.1
    connections: Connection = Connection.concat
    conv_mode: ConvMode = ConvMode.conv_2D
    growth_rate: GrowthRate = GrowthRate.additive
    downsampling: DownSampling = DownSampling.max_pooling
    upsampling: UpSampling = UpSampling.interpolation
    data_format: str = "channels_last"
    vertex: Vertex = dataclasses.field(default_factory=Vertex)
    classification: EventLabel = dataclasses.field(default_factory=EventLabel)

    def __post_init__(self):
        for key, kind in _CHOICES.items():
            setattr(self, key, member(kind, getattr(self, key), f"network.{key}"))
        for name, kind in _HEADS.items():
            if isinstance(getattr(self, name), Mapping):
                setattr(self, name, kind(**getattr(self, name)))
            self._check_least(_LOWEST_OF_HEADS, name)
        self._check_least(_LOWEST)
        self._take_older_names()
        self._refuse_what_nobody_built()

    def _check_least(self, lowest: Mapping[str, int], head: str = "") -> None:
        owner = getattr(self, head) if head else self
        for key, least in lowest.items():
            value = getattr(owner, key, None)
            if value is not None and not least <= value < math.inf:
                name = f"network.{head}.{key}" if head else f"network.{key}"
                raise ConfigError(f"{name}={value} was asked for; the least is {least}.")

    def _take_older_names(self) -> None:
        if self.kernel_size is not None:
            self.filter_size_deepest = self.kernel_size
        older, self.residual = self.residual, None
        if older is None:
            return
        if self.block_style is BlockStyle.convnext:
            raise ConfigError(
                f"network.residual={older} and network.block_style=convnext were asked for, two "
                "names of one setting. Give network.block_style alone."
            )
        self.block_style = BlockStyle.residual if older else BlockStyle.none

    def _refuse_what_nobody_built(self):
        for key in ("kernel_size", "filter_size_deepest"):
            if (getattr(self, key) or 1) % 2 == 0:
                raise ConfigError(
                    f"network.{key}={getattr(self, key)} was asked for, but an even kernel changes "
                    "the size of the image. Choose an odd one."
                )
        if self.vertex.active and self.vertex.depth > self.depth:
            raise ConfigError(
                f"network.vertex.depth={self.vertex.depth} was asked for, but levels are counted "
                f"from the smallest size, 0, to the full one, network.depth={self.depth}."
            )
        if self.conv_mode is ConvMode.conv_2D:
            return
        if self.block_concat:
            raise ConfigError(
                "network.block_concat=True keeps planes apart at the smallest size, but "
                "network.conv_mode=conv_3D has them in one volume. Choose conv_2D."
            )
        for head in _HEADS:
            if getattr(self, head).active:
                raise ConfigError(
                    f"network.{head}.active=True was asked for, but only the network of images "
                    "has heads. Choose network.conv_mode=conv_2D, or leave the head out."
                )

    @property
    def kernel(self) -> int:
        """The edge of the blocks' kernels, in pixels, at all sizes but the smallest."""
        return 3 if self.kernel_size is None else self.kernel_size

    def filters(self, level: int) -> int:
        """Return the number of filters at a level; 0 is full size, ``depth`` the smallest."""
        if self.growth_rate is GrowthRate.multiplicative:
            return self.n_initial_filters * 2**level
        return self.n_initial_filters * (level + 1)


NETWORKS: Mapping[str, Mapping[str, Any]] = {
    "uresnet": {"name": "uresnet"},
    "a21": {
        "name": "A21",
        "n_initial_filters": 8,
        "block_style": BlockStyle.none,
        "blocks_final": 0,
        "connections": Connection.sum,
    },
    # What the Graphcore and SambaNova ports call A21: the definition of late 2022.
    "a21_graphcore": {
        "name": "A21_graphcore",
        "n_initial_filters": 8,
        "block_style": BlockStyle.none,
    },
    "scc21": {"name": "scc21", "normalization": Norm.none},
    "polaris": {
        "name": "polaris",
        "blocks_deepest_layer": 2,
        "blocks_final": 2,
        "depth": 7,
        "bottleneck_deepest": 96,
        "block_style": BlockStyle.none,
        "connections": Connection.sum,
    },
    # The recipe of version 2.1, with both heads.
    "uresnet2": {
        "name": "uresnet2",
        "normalization": Norm.layer,
        "n_initial_filters": 64,
        "blocks_deepest_layer": 3,
        "blocks_final": 3,
        "depth": 5,
        "kernel_size": 3,
        "vertex": {"active": True},
        "classification": {"active": True},
    },
    "uresnet3d": {"name": "uresnet3d", "conv_mode": ConvMode.conv_3D},
}
"""Named networks as overrides of ``Network()``."""


def named(name: str, **changes: Any) -> Network:
    """Return a network configuration by its name in ``NETWORKS``, with overrides."""
    if name not in NETWORKS:
        raise ConfigError(f"network={name} was asked for. Known: {', '.join(NETWORKS)}.")
    return Network(**{**NETWORKS[name], **changes})

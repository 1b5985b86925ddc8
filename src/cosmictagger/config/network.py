"""The ``network.*`` configuration keys and the named networks.

Keys, defaults, and the names and numbers of the enumerations are those of CosmicTagger
(https://github.com/coreyjadams/CosmicTagger), so that its command lines and presets mean the same.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, TypeVar

from cosmictagger.errors import ConfigError


class ConvMode(enum.Enum):
    """Dimensionality of convolutions: planes as images that share weights, or as one volume."""

    conv_2D = 0  # noqa: N815  the original spells it so
    conv_3D = 1  # noqa: N815


class Norm(enum.Enum):
    """The normalisation after each convolution; ``layer`` is a name without implementation."""

    none = 0
    batch = 1
    layer = 2


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
        filter_size_deepest: edge of the kernels at the smallest size, in pixels; odd.
        bottleneck_deepest: filters of those blocks.
        residual: blocks of two convolutions around which the input is added.
        block_concat: the planes do not meet at the smallest size (2D only).
        weight_decay: kept for its name; PyTorch runs of the original ignore it, and so do we.
        connections: how the way up takes in what the way down saw.
        conv_mode: planes as images, or as one volume.
        growth_rate: how filters grow from level to level.
        downsampling: how an image is halved.
        upsampling: how an image is doubled.
        data_format: kept for its name. Images are always ``[B, 3, H, W]``; how they lie in memory
            is for the backend to choose.
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
    residual: bool = True
    block_concat: bool = False
    weight_decay: float = 0.1
    connections: Connection = Connection.concat
    conv_mode: ConvMode = ConvMode.conv_2D
    growth_rate: GrowthRate = GrowthRate.additive
    downsampling: DownSampling = DownSampling.max_pooling
    upsampling: UpSampling = UpSampling.interpolation
    data_format: str = "channels_last"

    def __post_init__(self):
        for key, kind in _CHOICES.items():
            setattr(self, key, member(kind, getattr(self, key), f"network.{key}"))
        for key, lowest in _LOWEST.items():
            if getattr(self, key) < lowest:
                raise ConfigError(
                    f"network.{key}={getattr(self, key)} was asked for; the least is {lowest}."
                )
        self._refuse_what_nobody_built()

    def _refuse_what_nobody_built(self):
        if self.normalization is Norm.layer:
            raise ConfigError(
                "network.normalization=layer was asked for, but exists by name only (in the "
                "original as well). Choose batch or none."
            )
        if self.filter_size_deepest % 2 == 0:
            raise ConfigError(
                f"network.filter_size_deepest={self.filter_size_deepest} was asked for, but an "
                "even kernel changes the size of the image. Choose an odd one."
            )
        if self.block_concat and self.conv_mode is ConvMode.conv_3D:
            raise ConfigError(
                "network.block_concat=True keeps planes apart at the smallest size, but "
                "network.conv_mode=conv_3D has them in one volume. Choose conv_2D."
            )

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
        "residual": False,
        "blocks_final": 0,
        "connections": Connection.sum,
    },
    # What the Graphcore and SambaNova ports call A21: the definition of late 2022.
    "a21_graphcore": {"name": "A21_graphcore", "n_initial_filters": 8, "residual": False},
    "scc21": {"name": "scc21", "normalization": Norm.none},
    "polaris": {
        "name": "polaris",
        "blocks_deepest_layer": 2,
        "blocks_final": 2,
        "depth": 7,
        "bottleneck_deepest": 96,
        "residual": False,
        "connections": Connection.sum,
    },
    "uresnet3d": {"name": "uresnet3d", "conv_mode": ConvMode.conv_3D},
}
"""Named networks as overrides of ``Network()``."""


def named(name: str, **changes: Any) -> Network:
    """Return a network configuration by its name in ``NETWORKS``, with overrides."""
    if name not in NETWORKS:
        raise ConfigError(f"network={name} was asked for. Known: {', '.join(NETWORKS)}.")
    return Network(**{**NETWORKS[name], **changes})

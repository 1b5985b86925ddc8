"""The networks: plain torch modules that know neither device nor loss."""

from __future__ import annotations

from torch import nn

from cosmictagger.config.network import ConvMode, Network
from cosmictagger.models.checks import check_image_size
from cosmictagger.models.uresnet import UResNet

__all__ = ["UResNet", "build", "check_image_size"]


def build(network: Network, image_size: tuple[int, int]) -> nn.Module:
    """The network a configuration describes, with fresh weights from torch's random numbers.

    Args:
        network: its shape.
        image_size: rows and columns of the images it will see.

    Returns:
        A module from ``[B, 3, H, W]`` to three of ``[B, 3, H, W]``: for each plane the scores of
        background, cosmic and neutrino.

    Raises:
        ConfigError: the image cannot be halved as often as the network does.
    """
    check_image_size(network, image_size)
    if network.conv_mode is ConvMode.conv_3D:
        from cosmictagger.models.uresnet3d import UResNet3D

        return UResNet3D(network)
    return UResNet(network)

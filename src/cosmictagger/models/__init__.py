"""The networks: plain torch modules that know neither device nor loss."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from cosmictagger import checkpoints
from cosmictagger.config.network import ConvMode, Network
from cosmictagger.models.networks import (
    LossInForward,
    UResNet,
    UResNet3D,
    check_image_size,
    check_not_sparse,
    fitting_downsamples,
)

__all__ = [
    "LossInForward",
    "UResNet",
    "UResNet3D",
    "build",
    "check_image_size",
    "check_not_sparse",
    "fitting_downsamples",
    "load_weights",
]


def build(network: Network, image_size: tuple[int, int]) -> nn.Module:
    """Return the network a configuration describes, with fresh weights from torch's random numbers.

    Args:
        network: its shape.
        image_size: rows and columns of the images it will see.

    Returns:
        A module from ``[B, 3, H, W]`` to three of ``[B, 3, H, W]``: for each plane the scores of
        background, cosmic and neutrino.
    """
    check_image_size(network, image_size)
    if network.conv_mode is ConvMode.conv_3D:
        return UResNet3D(network)
    return UResNet(network)


def load_weights(network: nn.Module, path: str | os.PathLike[str]) -> int | None:
    """Give a network the weights of a checkpoint, one of ours or of the original.

    Args:
        network: changed in place, only if everything fits.
        path: a ``.ckpt`` file, a folder of checkpoints, or a run's output folder.

    Returns:
        The step after which it was saved, if it says.
    """
    file: Path = checkpoints.locate(path)
    content = checkpoints.load(file)
    weights = checkpoints.network_weights(content)
    checkpoints.check_fits(weights, network, file)
    network.load_state_dict(weights)
    step = content.get("global_step")
    return None if step is None else int(step)

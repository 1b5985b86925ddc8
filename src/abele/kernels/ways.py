"""Which of our kernels computes a convolution of channels-last images, if any."""

from __future__ import annotations

import enum

import torch

from abele.kernels import direct, patches, winograd
from abele.kernels.convolution import Convolution, convolution_of


class Way(enum.Enum):
    """How our kernels compute a convolution."""

    DIRECT = enum.auto()
    WINOGRAD = enum.auto()
    PATCHES = enum.auto()


def way_of(convolution: Convolution) -> Way | None:
    """Return which kernels are the fastest for a convolution; ``None``: the library's."""
    if winograd.gains(convolution):
        return Way.WINOGRAD
    if patches.gains(convolution):
        return Way.PATCHES
    return Way.DIRECT if direct.gains(convolution) else None


def uses_winograd(node: torch.fx.Node) -> bool:
    """Return whether a node is a convolution, or its backward, that is computed Winograd's way."""
    return way_of_node(node) is Way.WINOGRAD


def way_of_node(node: torch.fx.Node) -> Way | None:
    """Return the same for any node of a graph; ``None`` also for other operators."""
    convolution = convolution_of(node)
    return None if convolution is None else way_of(convolution)

"""Which of our kernels computes a convolution of channels-last images, if any."""

from __future__ import annotations

import enum

import torch

from abele.kernels import direct, patches, pointwise, winograd
from abele.kernels.convolution import Convolution, convolution_of


class Way(enum.Enum):
    """How our kernels compute a convolution."""

    DIRECT = enum.auto()
    WINOGRAD = enum.auto()
    PATCHES = enum.auto()
    POINTWISE = enum.auto()


def way_of(convolution: Convolution) -> Way | None:
    """Return which kernels are the fastest for a convolution; ``None``: the library's."""
    if winograd.gains(convolution) and not direct.gains_over_winograd(convolution):
        return Way.WINOGRAD
    if patches.gains(convolution):
        return Way.PATCHES
    if pointwise.gains(convolution):
        return Way.POINTWISE
    return Way.DIRECT if direct.gains(convolution) else None


_WHY = {
    Way.WINOGRAD: "3x3 with enough channels: our kernel needs half of the multiplications",
    Way.PATCHES: "windows side by side: our kernel computes them as a product",
    Way.POINTWISE: "1x1 with enough channels: our kernel computes it as a product",
    Way.DIRECT: "few channels on large images: our kernel is faster than the library's",
}


def why(convolution: Convolution) -> str:
    """Return why a convolution is computed as ``way_of`` says."""
    way = way_of(convolution)
    if way is not None:
        return _WHY[way]
    if not convolution.suits_kernels:
        return "the library's: our kernels are for float32 images and wide registers"
    if not convolution.moves_by_one:
        return "the library's: it has a stride, dilation, groups, or is transposed"
    return "the library's: it is faster with these channels, kernel and pixels"


def suits_winograd(node: torch.fx.Node) -> bool:
    """Return whether a node is a convolution of 3x3, or its backward, with many channels.

    Winograd's way is faster than the library there, the direct one on some processors faster yet.
    """
    convolution = convolution_of(node)
    return convolution is not None and winograd.has_many_channels(convolution)


def way_of_node(node: torch.fx.Node) -> Way | None:
    """Return the same for any node of a graph; ``None`` also for other operators."""
    convolution = convolution_of(node)
    return None if convolution is None else way_of(convolution)

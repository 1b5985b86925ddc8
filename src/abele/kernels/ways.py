"""Which of our kernels computes a convolution of channels-last images, if any."""

from __future__ import annotations

import enum

import torch

from abele.kernels import direct, winograd
from abele.kernels.convolution import Convolution, convolution_of


class Way(enum.Enum):
    """How our kernels compute a convolution."""

    DIRECT = enum.auto()
    WINOGRAD = enum.auto()


def way_of(convolution: Convolution) -> Way | None:
    """Return which kernels are the fastest for a convolution; ``None``: the library's."""
    if winograd.gains(convolution):
        return Way.WINOGRAD
    return Way.DIRECT if direct.gains(convolution) else None


def uses_winograd(node: torch.fx.Node) -> bool:
    """Return whether a node is a convolution, or its backward, that is computed Winograd's way."""
    convolution = convolution_of(node)
    return convolution is not None and way_of(convolution) is Way.WINOGRAD

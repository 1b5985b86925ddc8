"""Which convolutions emitted code computes itself, and how."""

from __future__ import annotations

import torch

from abele.passes.of_lowerings import few_channel_convolutions as few_channels
from abele.program import Program
from abele.targets.cpu.emitted.calls import pointwise_convolutions

aten = torch.ops.aten

OPERATORS = (aten.convolution.default, aten.convolution_backward.default)


def few_channel_convolutions(program: Program) -> Program:
    """Replace those of few channels by our kernels, except where a product is faster."""
    return few_channels.replaced(program, _has_few_channels)


def why_not(node: torch.fx.Node) -> str | None:
    """Return why the library computes a convolution or its backward; ``None`` if our code does.

    Args:
        node: any of the two, before or after ``few_channel_convolutions``.
    """
    why = pointwise_convolutions.why_not(node)
    if why is None or few_channels.is_supported(node):
        return None
    return why if pointwise_convolutions.is_one(node) else few_channels.why_not(node)


def _has_few_channels(node: torch.fx.Node) -> bool:
    return pointwise_convolutions.why_not(node) is not None and few_channels.is_supported(node)

"""Choice of the convolutions that emitted code computes itself."""

from __future__ import annotations

from typing import Any

import torch

from abele.passes.of_lowerings import convolutions as few_channels
from abele.program import Program
from abele.targets.cpu.emitted.calls import depthwise_convolutions, pointwise_convolutions

aten = torch.ops.aten

OPERATORS = (aten.convolution.default, aten.convolution_backward.default)
_WAYS = (pointwise_convolutions, depthwise_convolutions)


def few_channel_convolutions(program: Program) -> Program:
    """Replace those of few channels by our kernels, except where another way is faster."""
    return few_channels.replaced(program, _has_few_channels)


def why_not(node: torch.fx.Node) -> str | None:
    """Return why the library computes a convolution or its backward; ``None`` if our code does.

    Args:
        node: any of the two, before or after ``few_channel_convolutions``.
    """
    why = few_channels.why_not(node)
    if why is None or is_product_or_depthwise(node):
        return None
    return next((way.why_not(node) for way in _WAYS if way.is_one(node)), why)


def is_product_or_depthwise(node: torch.fx.Node) -> bool:
    """Return whether a convolution or its backward is a product, or has a kernel per channel."""
    return any(way.why_not(node) is None for way in _WAYS)


def convolution(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.convolution``, by the way that suits it."""
    return any(way.convolution(translator, node) for way in _WAYS)


def convolution_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.convolution_backward``, by the way that suits it."""
    return any(way.convolution_backward(translator, node) for way in _WAYS)


def _has_few_channels(node: torch.fx.Node) -> bool:
    return not is_product_or_depthwise(node) and few_channels.why_not(node) is None


HANDLERS = {
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
}

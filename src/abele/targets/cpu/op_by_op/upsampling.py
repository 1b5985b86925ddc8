"""Bilinear upsampling of channels-last images: which is ours, and how it is called."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.kernels import on_tensors
from abele.kernels.on_tensors import CHANNELS_LAST

aten = torch.ops.aten

_Node = torch.fx.Node


def own_upsampling(node: _Node, library: ctypes.CDLL) -> Callable[..., torch.Tensor] | None:
    """Return our kernel that doubles images, or computes the gradient, or None.

    Where an image is not channels last, the library computes it after all.

    Args:
        node: any node of a graph.
        library: the kernels.
    """
    if not is_ours(node):
        return None
    doubles = node.target is aten.upsample_bilinear2d.default
    return _forward(library) if doubles else _backward(library)


def is_ours(node: _Node) -> bool:
    """Return whether our kernels compute a node: images doubled, or their gradient."""
    arguments: tuple[Any, ...] = node.args
    if node.target is aten.upsample_bilinear2d.default and not node.kwargs:
        x, size, *settings = arguments
        return _is_doubled(x, x.meta["val"].shape, size, *settings)
    if node.target is aten.upsample_bilinear2d_backward.default and not node.kwargs:
        grad, size, shape, *settings = arguments
        return _is_doubled(grad, shape, size, *settings)
    return False


def _is_doubled(
    tensor: _Node,
    shape: Sequence[int],
    size: Sequence[int],
    align_corners: bool,
    *scales: float | None,
) -> bool:
    """Return whether images of ``shape`` become twice as large without aligned corners."""
    value = tensor.meta["val"]
    doubled = list(size) == [2 * each for each in shape[2:]]
    usual = all(scale in (None, 2.0) for scale in scales)
    return value.dtype is torch.float32 and doubled and usual and not align_corners


def _forward(library: ctypes.CDLL) -> Callable[..., torch.Tensor]:
    def upsample(x: torch.Tensor, *settings: Any) -> torch.Tensor:
        if not x.is_contiguous(memory_format=CHANNELS_LAST):
            return aten.upsample_bilinear2d(x, *settings)
        return on_tensors.upsample(library, x)

    return upsample


def _backward(library: ctypes.CDLL) -> Callable[..., torch.Tensor]:
    def upsample_backward(grad: torch.Tensor, *settings: Any) -> torch.Tensor:
        if not grad.is_contiguous(memory_format=CHANNELS_LAST):
            return aten.upsample_bilinear2d_backward(grad, *settings)
        return on_tensors.upsample_backward(library, grad)

    return upsample_backward

"""Max pools of channels-last images: which are ours, and how they are called."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.kernels import on_tensors
from abele.kernels.on_tensors import CHANNELS_LAST
from abele.program import is_getitem

aten = torch.ops.aten

_Node = torch.fx.Node


def own_pool(node: _Node, library: ctypes.CDLL) -> Callable[..., Any] | None:
    """Return our kernel for a max pool or its backward, or None.

    Where an image is not channels last, the library computes it after all.

    Args:
        node: any node of a graph.
        library: the kernels.
    """
    if not is_ours(node):
        return None
    if node.target is aten.max_pool2d_with_indices.default:
        return _forward(library, places=has_places(node))
    return _backward(library)


def has_places(node: _Node) -> bool:
    """Return whether our max pool stores the index of each maximum, a byte, for its backward."""
    return bool(_readers(node))


def is_ours(node: _Node) -> bool:
    """Return whether our kernels compute a node, a max pool or its backward."""
    if node.target is not aten.max_pool2d_with_indices.default:
        return node.target is aten.max_pool2d_with_indices_backward.default
    arguments: tuple[Any, ...] = node.args
    back = aten.max_pool2d_with_indices_backward.default
    # Nobody else may see that a place is no index.
    alone = all(
        user.target is back and user.args[7] is places
        for places, users in _readers(node).items()
        for user in users
    )
    x, *settings = arguments
    return alone and _is_two_by_two(x.meta["val"], *settings)


def _is_two_by_two(
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> bool:
    """Return whether ``aten.max_pool2d_with_indices`` is one that our kernels compute.

    They do it for batches of float32 images, in windows of 2x2 that overlap neither each other nor
    a border.

    Args:
        x: ``[N, C, H, W]``, may be without data.
        kernel: of each dimension, as the operator takes it; likewise the others.
        stride: the kernel's if empty.
        padding: at each border.
        dilation: between the pixels of a window.
        ceil_mode: whether windows may reach over the border.
    """
    return (
        x.dtype is torch.float32
        and x.dim() == 4
        and set(kernel) == {2}
        and set(stride) <= {2}
        and set(padding) == {0}
        and set(dilation) == {1}
        and not (ceil_mode and (x.shape[2] % 2 or x.shape[3] % 2))
    )


def _readers(node: _Node) -> dict[_Node, list[_Node]]:
    """Return the readers of the indices of a pool's maxima."""
    picked = [user for user in node.users if is_getitem(user) and user.args[1] == 1]
    return {each: list(each.users) for each in picked if each.users}


def _forward(library: ctypes.CDLL, *, places: bool) -> Callable[..., Any]:
    def max_pool(x: torch.Tensor, *settings: Any) -> Sequence[torch.Tensor | None]:
        if not x.is_contiguous(memory_format=CHANNELS_LAST):
            return aten.max_pool2d_with_indices(x, *settings)
        return on_tensors.max_pool(library, x, layout=CHANNELS_LAST, places=places)[:2]

    return max_pool


def _backward(library: ctypes.CDLL) -> Callable[..., torch.Tensor]:
    def max_pool_backward(grad: torch.Tensor, x: torch.Tensor, *settings: Any) -> torch.Tensor:
        places = settings[-1]
        if places.dtype is not torch.uint8:
            return aten.max_pool2d_with_indices_backward(grad, x, *settings)
        grad = on_tensors.channels_last(grad)
        return on_tensors.max_pool_backward(library, grad, x.shape, places, layout=CHANNELS_LAST)

    return max_pool_backward

"""Max pools of channels-last images: which are ours, and how they are called."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.kernels import on_tensors
from abele.kernels.on_tensors import CHANNELS_LAST
from abele.ops import max_pool
from abele.program import is_getitem

aten = torch.ops.aten

_Node = torch.fx.Node


def own_pool(node: _Node, library: ctypes.CDLL) -> Callable[..., Any] | None:
    """What computes a max pool or its backward in the place of the library.

    Where an image is not channels last, the library computes it after all.

    Args:
        node: any node of a graph.
        library: the kernels.
    """
    arguments: tuple[Any, ...] = node.args
    if node.target is aten.max_pool2d_with_indices.default:
        picked = {user.args[1]: user for user in node.users if is_getitem(user)}
        readers = list(picked[1].users) if 1 in picked else []
        back = aten.max_pool2d_with_indices_backward.default
        # Nobody else may see that a place is no index.
        alone = all(user.target is back and user.args[7] is picked[1] for user in readers)
        x, *settings = arguments
        if alone and max_pool.is_two_by_two(x.meta["val"], *settings):
            return _forward(library, places=bool(readers))
    elif node.target is aten.max_pool2d_with_indices_backward.default:
        return _backward(library)
    return None


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
        grad = grad.contiguous(memory_format=CHANNELS_LAST)
        return on_tensors.max_pool_backward(library, grad, x.shape, places, layout=CHANNELS_LAST)

    return max_pool_backward

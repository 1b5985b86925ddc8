"""Max pools of channels-last images: which are ours, and how they are called."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from abele.ops import max_pool
from abele.program import is_getitem
from abele.targets.cpu.op_by_op.calls import threads_for
from abele.targets.cpu.op_by_op.library import ImagePool

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
        if alone and _fits(*arguments):
            return _forward(library, places=bool(readers))
    elif node.target is aten.max_pool2d_with_indices_backward.default:
        return _backward(library)
    return None


def _fits(x: _Node, *settings: Any) -> bool:
    value = x.meta["val"]
    fits = max_pool.is_two_by_two(value, *settings)
    return fits and value.shape[2] % 2 == value.shape[3] % 2 == 0


def _describe(x: torch.Tensor) -> tuple[ImagePool, int]:
    images, channels, height, width = x.shape
    return ImagePool(images, height, width, channels), threads_for(x.numel())


def _forward(library: ctypes.CDLL, *, places: bool) -> Callable[..., Any]:
    def max_pool(x, *settings):
        if not x.is_contiguous(memory_format=torch.channels_last):
            return aten.max_pool2d_with_indices(x, *settings)
        images, channels, height, width = x.shape
        shape, last = (images, channels, height // 2, width // 2), torch.channels_last
        y = torch.empty(shape, memory_format=last)
        found = torch.empty(shape, dtype=torch.uint8, memory_format=last) if places else None
        pool, threads = _describe(x)
        pointer = None if found is None else found.data_ptr()
        library.abele_image_pool(pool, x.data_ptr(), y.data_ptr(), pointer, threads)
        return y, found

    return max_pool


def _backward(library: ctypes.CDLL) -> Callable[..., torch.Tensor]:
    def max_pool_backward(grad, x, *settings):
        places = settings[-1]
        if places.dtype is not torch.uint8:
            return aten.max_pool2d_with_indices_backward(grad, x, *settings)
        grad = grad.contiguous(memory_format=torch.channels_last)
        grad_x = torch.empty(x.shape, memory_format=torch.channels_last)
        pool, threads = _describe(x)
        pointers = grad.data_ptr(), places.data_ptr(), grad_x.data_ptr()
        library.abele_image_pool_backward(pool, *pointers, threads)
        return grad_x

    return max_pool_backward

"""The kernels of convolutions and max pools as functions of tensors.

Each takes the library that ``binding.load`` returns. ``layout`` says how the images lie in memory:
``torch.contiguous_format`` or ``torch.channels_last``; those of the results lie the same way.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch

from abele.kernels import prepared
from abele.kernels.binding import Pool, Upsample, threads_for

PLANES, CHANNELS_LAST = torch.contiguous_format, torch.channels_last
# Samples that lie side by side in the widest register: places are noted for all of them.
_PLACED_TOGETHER = 16


def conv(
    library: ctypes.CDLL,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    *,
    layout: torch.memory_format = PLANES,
    slope: float = 1.0,
    threads: int | None = None,
    winograd: bool = False,
) -> torch.Tensor:
    """Return a convolution, without groups and dilation, and its leaky ReLU.

    Args:
        library: the kernels.
        x: float32 ``[N, C, H, W]``.
        weight: float32 ``[O, C, h, w]``, contiguous.
        bias: float32 ``[O]``.
        stride: of rows and columns; likewise ``padding``.
        padding: zeros at each border.
        layout: of the images; see ``abi.h`` for what there is code for.
        slope: of the activation below zero; 1 for none.
        threads: how many work; default: as many as it is worth.
        winograd: whether to compute it by Winograd's way, for many channels.

    Raises:
        CorruptExecutable: there is no code for this convolution.
        MemoryError: there is no memory.
        ValueError: a tensor does not lie as it has to.
    """
    _require(layout, x)
    _require(PLANES, weight, bias)
    name = "winograd" if winograd else "conv"
    how: dict[str, Any] = {"layout": layout, "threads": threads, "function": name}
    run = prepared.conv(library, x.shape, weight.shape, stride, padding, slope=slope, **how)
    return run(x, weight, bias)


def conv_backward(
    library: ctypes.CDLL,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    output_mask: Sequence[bool],
    *,
    layout: torch.memory_format = PLANES,
    threads: int | None = None,
    winograd: bool = False,
) -> list[torch.Tensor | None]:
    """Return the gradients of ``x``, ``weight`` and a bias; ``None`` where the mask says so.

    Takes and raises what ``conv`` does; ``grad`` is that of its result without activation.
    """
    _require(layout, grad, x)
    _require(PLANES, weight)
    name = "winograd" if winograd else "conv"
    how: dict[str, Any] = {"layout": layout, "threads": threads, "function": name}
    run = prepared.conv_backward(
        library, x.shape, weight.shape, stride, padding, output_mask, **how
    )
    return run(grad, x, weight)


def conv_pool(
    library: ctypes.CDLL,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    *,
    relu: bool,
    places: bool = False,
    threads: int = 1,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the largest values of windows of 2x2 of a convolution, and their places.

    Takes and raises what ``conv`` does; ``relu`` says whether a ReLU comes before the pool. The
    places are for ``conv_pool_backward`` alone.
    """
    *first, height, width = prepared.result_shape(x.shape, weight.shape, stride, padding)
    y = torch.empty((*first, height // 2, width // 2))
    where = torch.empty(place_count(y.shape), dtype=torch.uint8) if places else None
    description = prepared.describe(
        x.shape, weight.shape, stride, padding, slope=0.0 if relu else 1.0
    )
    pointers = (pointer(each) for each in (x, weight, bias, y, where))
    library.abele_conv_pool(description, *pointers, threads)
    return y, where


def conv_pool_backward(
    library: ctypes.CDLL,
    grad: torch.Tensor,
    places: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    output_mask: Sequence[bool],
    *,
    threads: int = 1,
) -> list[torch.Tensor | None]:
    """Return the gradients of ``x``, ``weight`` and a bias from that of what ``conv_pool`` gave.

    Takes and raises what ``conv_backward`` does.
    """
    shapes = (x.shape, weight.shape, weight.shape[:1])
    results = [
        torch.empty(shape) if wanted else None
        for shape, wanted in zip(shapes, output_mask, strict=True)
    ]
    pointers = (pointer(each) for each in (grad, places, x, weight, *results))
    description = prepared.describe(x.shape, weight.shape, stride, padding)
    library.abele_conv_pool_backward(description, *pointers, threads)
    return results


def place_count(shape: Sequence[int]) -> int:
    """Return how many places ``conv_pool`` notes for results of ``shape`` ``[N, C, H, W]``."""
    images, *rest = shape
    return -(-images // _PLACED_TOGETHER) * _PLACED_TOGETHER * math.prod(rest)


def max_pool(
    library: ctypes.CDLL,
    x: torch.Tensor,
    *,
    layout: torch.memory_format = PLANES,
    places: bool = False,
    indices: bool = False,
    threads: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return the largest values of windows of 2x2, their places and their indices.

    Args:
        library: the kernels.
        x: float32 ``[N, C, H, W]``; a last odd row or column belongs to no window.
        layout: of the images.
        places: whether to return where in its window a value was: uint8, 0 to 3 in scan order.
        indices: whether to return where in its image: int64, as torch does.
        threads: how many work; default: as many as it is worth.

    Raises:
        CorruptExecutable: the images have 2^31 pixels or more.
        ValueError: ``x`` does not lie as it has to.
    """
    shape = (*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2)
    y = torch.empty(shape, memory_format=layout)
    where = torch.empty(shape, dtype=torch.uint8, memory_format=layout) if places else None
    index = torch.empty(shape, dtype=torch.int64, memory_format=layout) if indices else None
    pointers = (pointer(each, layout) for each in (x, y, where, index))
    threads = threads or threads_for(library, x.numel())
    library.abele_max_pool(_pool(x.shape, layout), *pointers, threads)
    return y, where, index


def max_pool_backward(
    library: ctypes.CDLL,
    grad: torch.Tensor,
    shape: torch.Size,
    places: torch.Tensor,
    *,
    layout: torch.memory_format = PLANES,
    threads: int | None = None,
) -> torch.Tensor:
    """Return the gradient of the images of ``shape``, from that of the values and their places.

    Takes and raises what ``max_pool`` does.
    """
    grad_x = torch.empty(shape, memory_format=layout)
    pointers = (pointer(each, layout) for each in (grad, places, grad_x))
    threads = threads or threads_for(library, grad_x.numel())
    library.abele_max_pool_backward(_pool(shape, layout), *pointers, threads)
    return grad_x


def upsample(library: ctypes.CDLL, x: torch.Tensor, threads: int | None = None) -> torch.Tensor:
    """Return images of twice the height and width, bilinear, corners not aligned.

    Args:
        library: the kernels.
        x: float32 ``[N, C, H, W]``, channels last; so is the result.
        threads: how many work; default: as many as it is worth.

    Raises:
        ValueError: ``x`` does not lie as it has to.
    """
    images, channels, height, width = x.shape
    y = torch.empty((images, channels, 2 * height, 2 * width), memory_format=CHANNELS_LAST)
    pointers = (pointer(each, CHANNELS_LAST) for each in (x, y))
    threads = threads or threads_for(library, y.numel())
    library.abele_upsample(Upsample(*x.shape), *pointers, threads)
    return y


def upsample_backward(
    library: ctypes.CDLL, grad: torch.Tensor, threads: int | None = None
) -> torch.Tensor:
    """Return the gradient of what ``upsample`` was given. Takes and raises what that does."""
    images, channels, height, width = grad.shape
    grad_x = torch.empty((images, channels, height // 2, width // 2), memory_format=CHANNELS_LAST)
    pointers = (pointer(each, CHANNELS_LAST) for each in (grad, grad_x))
    threads = threads or threads_for(library, grad.numel())
    library.abele_upsample_backward(Upsample(*grad_x.shape), *pointers, threads)
    return grad_x


def _pool(shape: torch.Size, layout: torch.memory_format) -> ctypes.Structure:
    return Pool(*shape, int(layout is CHANNELS_LAST))


def pointer(tensor: torch.Tensor | None, layout: torch.memory_format = PLANES) -> int | None:
    """The address of a tensor's data, or None without a tensor.

    Raises:
        ValueError: it does not lie as it has to.
    """
    _require(layout, tensor)
    return None if tensor is None else tensor.data_ptr()


def _require(layout: torch.memory_format, *tensors: torch.Tensor | None) -> None:
    for each in tensors:
        if each is not None and not each.is_contiguous(memory_format=layout):
            raise ValueError(f"The kernels want {layout}, not strides {each.stride()}.")


def channels_last(images: torch.Tensor) -> torch.Tensor:
    """Return images ``[N, C, H, W]`` channels last; a copy only if they lie otherwise."""
    return images.contiguous(memory_format=CHANNELS_LAST)


def dense(*tensors: torch.Tensor | None) -> list[Any]:
    """Return contiguous tensors, copied where they are not, such as columns of something larger.

    ``None`` stays ``None``.
    """
    return [None if each is None else each.contiguous() for each in tensors]

"""Convolutions of sizes that are known before: whatever depends on sizes alone is worked out once.

A static program calls the same convolution at every step. Describing it and allotting its threads
takes longer in Python than the call itself. ``on_tensors.py`` says what each computes and checks
how tensors lie; here nothing is checked.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence

import torch

from abele.kernels.binding import Conv

Tensor = torch.Tensor
#: Of images, weight and bias, or of the gradient, images and weight.
Forward = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Backward = Callable[[Tensor, Tensor, Tensor], list[Tensor | None]]


def describe(
    images: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    layout: torch.memory_format = torch.contiguous_format,
    slope: float = 1.0,
) -> ctypes.Structure:
    """Return the convolution of images ``[N, C, H, W]`` with a kernel ``[O, C, h, w]``."""
    last = int(layout is torch.channels_last)
    return Conv(*images, kernel[0], *kernel[2:], *stride, *padding, last, slope)


def result_shape(
    images: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> tuple[int, ...]:
    """Return the shape ``[N, O, H, W]`` of a convolution's result."""
    sizes = zip(images[2:], kernel[2:], stride, padding, strict=True)
    return (images[0], kernel[0], *((n + 2 * pad - k) // step + 1 for n, k, step, pad in sizes))


def conv(
    library: ctypes.CDLL,
    images: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    *,
    layout: torch.memory_format = torch.contiguous_format,
    slope: float = 1.0,
    threads: int | None = None,
    function: str = "conv",
) -> Forward:
    """A convolution of images of shape ``[N, C, H, W]`` with a weight of ``[O, C, h, w]``.

    ``function`` is the name in ``abi.h`` of those that compute it: conv, winograd or pointwise.
    """
    described = ctypes.byref(describe(images, kernel, stride, padding, layout, slope))
    shape = result_shape(images, kernel, stride, padding)
    run = getattr(library, f"abele_{function}_forward")
    worth = threads_worth(library, 0, math.prod(shape) * math.prod(kernel[1:]))

    def conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = torch.empty(shape, memory_format=layout)
        inputs = x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr()
        run(described, *inputs, y.data_ptr(), threads or worth())
        return y

    return conv


def conv_backward(
    library: ctypes.CDLL,
    images: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    output_mask: Sequence[bool],
    *,
    layout: torch.memory_format = torch.contiguous_format,
    threads: int | None = None,
    function: str = "conv",
) -> Backward:
    """The gradients that the mask asks for; of the images, the weight and a bias.

    ``function`` is as for ``conv``.
    """
    described = ctypes.byref(describe(images, kernel, stride, padding, layout))
    of_x, of_weight, of_bias = output_mask
    multiply_adds = math.prod(result_shape(images, kernel, stride, padding)) * math.prod(kernel[1:])
    run = getattr(library, f"abele_{function}_backward")
    worth = threads_worth(library, 0, (of_x + of_weight) * multiply_adds)

    def conv_backward(grad: Tensor, x: Tensor, weight: Tensor) -> list[Tensor | None]:
        results = [
            torch.empty(images, memory_format=layout) if of_x else None,
            torch.empty(kernel) if of_weight else None,
            torch.empty(kernel[:1]) if of_bias else None,
        ]
        outputs = [None if each is None else each.data_ptr() for each in results]
        inputs = grad.data_ptr(), x.data_ptr(), weight.data_ptr()
        run(described, *inputs, *outputs, threads or worth())
        return results

    return conv_backward


def threads_worth(library: ctypes.CDLL, floats: int, multiply_adds: int = 0) -> Callable[[], int]:
    """What ``binding.threads_for`` says of such a pass; asked once per number of threads."""
    of = functools.cache(functools.partial(library.abele_threads, floats, multiply_adds))
    return lambda: of(torch.get_num_threads())

"""Convolutions of large images with few channels: which are ours, and how they are called.

The library is good at many channels. With eight to thirty-two it reaches a third to two thirds of
the processor's speed, and sums weight gradients with fifty times the error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from abele import _torch
from abele.errors import CorruptExecutable
from abele.targets.cpu.op_by_op.calls import threads_for
from abele.targets.cpu.op_by_op.library import Conv

aten = torch.ops.aten

_Node = torch.fx.Node

# More weights than this leave the nearest cache, and the library is as fast.
_MOST_WEIGHTS = 32 * 32 * 9
# The kernel takes that many pixels of a row at once.
_LEAST_WIDTH = 16
_LANES = 8
_ADDS_PER_THREAD = 2**20

NO_CODE = 3  # of image_conv.h


def own_convolution(node: _Node, library: ctypes.CDLL) -> Callable[..., Any] | None:
    """What computes a convolution or its backward in the place of the library, if that is faster.

    Args:
        node: any node of a graph; images of its convolution are channels last.
        library: the kernels.
    """
    arguments: tuple[Any, ...] = node.args
    if node.target is aten.convolution.default:
        x, weight, _, stride, padding, dilation, transposed, _, groups = arguments
        make, slope = _forward, 1.0
    elif node.target is aten.convolution_backward.default:
        _, x, weight, _, stride, padding, dilation, transposed, _, groups, _ = arguments
        make, slope = _backward, 1.0
    elif node.target is _torch.convolution_with_activation():
        x, weight, _, padding, stride, dilation, groups, activation, scalars, _ = arguments
        if activation not in ("none", "leaky_relu"):
            return None
        make, slope = _forward, float(scalars[0]) if scalars else 1.0
        transposed = False
    else:
        return None
    image, shape = x.meta["val"], weight.meta["val"].shape
    plain = {*stride, *dilation, groups} == {1} and not transposed
    if not plain or image.dim() != 4 or not _sizes_fit(image, shape, padding):
        return None
    return make(library, slope)


def _sizes_fit(image: torch.Tensor, weight: torch.Size, padding: list[int]) -> bool:
    _, _, height, width = weight
    return (
        image.dtype is torch.float32
        and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
        and height == width
        and width in (1, 3, 5)
        and set(padding) == {width // 2}
        and image.shape[3] >= _LEAST_WIDTH
        and weight.numel() <= _MOST_WEIGHTS
    )


def _describe(x: torch.Tensor, weight: torch.Tensor, slope: float) -> tuple[Conv, int]:
    images, channels, height, width = x.shape
    conv = Conv(images, height, width, channels, weight.shape[0], weight.shape[2], slope)
    return conv, threads_for(16384 * images * height * width * weight.numel() // _ADDS_PER_THREAD)


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _check(status: int) -> None:
    if status == NO_CODE:
        raise CorruptExecutable(
            "The executable's kernels lack a convolution of this program. Compile it again."
        )
    if status:
        raise MemoryError("A convolution found no memory for its sums.")


def _forward(library: ctypes.CDLL, slope: float) -> Callable[..., torch.Tensor]:
    def convolution(x, weight, bias, *_):
        x, weight = _rows(x), weight.contiguous()
        conv, threads = _describe(x, weight, slope)
        shape = (x.shape[0], weight.shape[0], *x.shape[2:])
        y = torch.empty(shape, memory_format=torch.channels_last)
        start = None if bias is None else bias.data_ptr()
        pointers = x.data_ptr(), weight.data_ptr(), start, y.data_ptr()
        _check(library.abele_conv(conv, *pointers, 0, threads))
        return y

    return convolution


def _backward(library: ctypes.CDLL, slope: float) -> Callable[..., Any]:
    def convolution_backward(grad, x, weight, sizes, *settings):
        *settings, (of_x, of_weight, of_bias) = settings
        grad, x, weight = _rows(grad), _rows(x), weight.contiguous()
        conv, threads = _describe(x, weight, slope)
        out, inputs = weight.shape[:2]
        grad_x = grad_weight = None
        if of_x:
            grad_x, of_x = torch.empty(x.shape, memory_format=torch.channels_last), False
            pointers = grad.data_ptr(), weight.data_ptr(), None, grad_x.data_ptr()
            _check(library.abele_conv(conv, *pointers, 1, threads))
        if of_weight and out % _LANES == 0 and (inputs == 1 or inputs % _LANES == 0):
            grad_weight, of_weight = torch.empty_like(weight), False
            pointers = x.data_ptr(), grad.data_ptr(), grad_weight.data_ptr()
            _check(library.abele_conv_weight_gradient(conv, *pointers, threads))
        grad_bias = None
        if of_x or of_weight:
            mask = [of_x, of_weight, of_bias]
            rest = aten.convolution_backward(grad, x, weight, sizes, *settings, mask)
            # What was not asked for is None there.
            grad_x = rest[0] if grad_x is None else grad_x
            grad_weight = rest[1] if grad_weight is None else grad_weight
            grad_bias = rest[2]
        elif of_bias:
            grad_bias = grad.sum((0, 2, 3))
        return grad_x, grad_weight, grad_bias

    return convolution_backward

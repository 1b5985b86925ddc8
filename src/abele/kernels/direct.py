"""The kernels called one by one through ctypes, for tests and benchmarks.

Compiled programs do not come this way; they call the same functions through ``shims.cpp``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch

from abele import kernels


class _Conv(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("batch", "in_channels", "in_height", "in_width"),
            *("out_channels", "kernel_height", "kernel_width"),
            *("stride_height", "stride_width", "pad_height", "pad_width"),
            *("out_height", "out_width"),
        )
    ]


class _Pool(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("planes", "in_height", "in_width", "kernel_height", "kernel_width"),
            *("stride_height", "stride_width", "out_height", "out_width"),
        )
    ]


class Kernels:
    """The kernels of a shared library that ``compiler`` makes at ``path``."""

    def __init__(self, compiler: str, path: Path):
        self._library = ctypes.CDLL(str(kernels.shared_library(compiler, path)))

    def conv(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        threads: int = 1,
    ) -> torch.Tensor:
        """Return what ``abele::few_channel_conv`` computes."""
        conv = _describe(x, weight, stride, padding)
        y = x.new_empty(conv.batch, conv.out_channels, conv.out_height, conv.out_width)
        arguments = [_pointer(each) for each in (x, weight, bias, y)]
        _check(self._library.abele_conv_forward(ctypes.byref(conv), *arguments, threads))
        return y

    def conv_backward(
        self,
        grad: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        output_mask: Sequence[bool],
        threads: int = 1,
    ) -> list[torch.Tensor | None]:
        """Return what ``abele::few_channel_conv_backward`` computes."""
        conv = _describe(x, weight, stride, padding)
        shapes = (x.shape, weight.shape, weight.shape[:1])
        results = [
            x.new_empty(shape) if needed else None
            for shape, needed in zip(shapes, output_mask, strict=True)
        ]
        arguments = [_pointer(each) for each in (grad, x, weight, *results)]
        _check(self._library.abele_conv_backward(ctypes.byref(conv), *arguments, threads))
        return results

    def max_pool(
        self, x: torch.Tensor, kernel: Sequence[int], stride: Sequence[int], threads: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what ``abele::max_pool`` computes."""
        batch, channels, *sizes = x.shape
        out = [(sizes[i] - kernel[i]) // stride[i] + 1 for i in (0, 1)]
        pool = _Pool(batch * channels, *sizes, *kernel, *stride, *out)
        values = x.new_empty(batch, channels, *out)
        indices = x.new_empty(batch, channels, *out, dtype=torch.int64)
        arguments = [_pointer(each) for each in (x, values, indices)]
        self._library.abele_max_pool(ctypes.byref(pool), *arguments, threads)
        return values, indices


def _describe(
    x: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], padding: Sequence[int]
) -> _Conv:
    out = [(x.shape[2 + i] + 2 * padding[i] - weight.shape[2 + i]) // stride[i] + 1 for i in (0, 1)]
    return _Conv(*x.shape, weight.shape[0], *weight.shape[2:], *stride, *padding, *out)


def _pointer(tensor: torch.Tensor | None) -> ctypes.c_void_p | None:
    if tensor is None:
        return None
    if not tensor.is_contiguous():
        raise ValueError(f"The kernels want contiguous tensors, not strides {tensor.stride()}.")
    return ctypes.c_void_p(tensor.data_ptr())


def _check(status: int) -> None:
    if status != 0:
        raise MemoryError("A kernel found no memory for its scratch space.")

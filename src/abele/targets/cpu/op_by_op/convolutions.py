"""Calls of our kernels for convolutions; ``kernels.convolutions`` chooses the kernel."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.kernels import on_tensors
from abele.kernels.convolutions import (
    DIRECT,
    PATCHES,
    Convolution,
    Kernel,
    convolution_of,
    kernel_for,
)
from abele.kernels.on_tensors import CHANNELS_LAST, channels_last, dense

aten = torch.ops.aten

_Node = torch.fx.Node

# The kernels of weight gradients hold so many channels.
_LANES = 8


def own_convolution(node: _Node, library: ctypes.CDLL) -> Callable[..., Any] | None:
    """Return our kernel for a convolution or its backward, if it is faster than oneDNN's.

    Args:
        node: any node of a graph; images of its convolution are channels last.
        library: the kernels.
    """
    convolution = convolution_of(node)
    kernel = None if convolution is None else kernel_for(convolution)
    if convolution is None or kernel is None:
        return None
    if kernel is PATCHES:
        make = _patches_backward if convolution.backward else _patches
        function = make(library, transposed=convolution.transposed)
    elif convolution.backward:
        function = _backward(library, convolution, kernel)
    else:
        function = _forward(library, convolution, kernel)
    function.__name__ = name_of(convolution, kernel)
    return function


def name_of(convolution: Convolution, kernel: Kernel) -> str:
    """Return the name in reports of our kernel for a convolution."""
    return f"{kernel.name}_convolution{'_backward' if convolution.backward else ''}"


def _forward(
    library: ctypes.CDLL, convolution: Convolution, kernel: Kernel
) -> Callable[..., torch.Tensor]:
    how: dict[str, Any] = {"slope": convolution.slope, "function": kernel.function}
    run = on_tensors.conv(library, *_sizes(convolution), layout=CHANNELS_LAST, **how)

    def run_forward(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *_: Any
    ) -> torch.Tensor:
        return run(channels_last(x), *dense(weight, bias))

    return run_forward


def _backward(library: ctypes.CDLL, convolution: Convolution, kernel: Kernel) -> Callable[..., Any]:
    weight_is_ours = kernel is not DIRECT or _fill(*convolution.weight.shape)
    sizes = _sizes(convolution)
    how: dict[str, Any] = {"layout": CHANNELS_LAST, "function": kernel.function}

    @functools.cache
    def prepared_for(*wanted: bool) -> on_tensors.Backward:
        return on_tensors.conv_backward(library, *sizes, wanted, **how)

    def convolution_backward(
        grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *given: Any
    ) -> tuple[torch.Tensor | None, ...]:
        *settings, (of_x, of_weight, of_bias) = given
        grad, x, weight = channels_last(grad), channels_last(x), weight.contiguous()
        run = prepared_for(of_x, of_weight and weight_is_ours, of_bias)
        gradients = run(grad, x, weight)
        if of_weight and not weight_is_ours:
            mask = [False, True, False]
            rest = aten.convolution_backward(grad, x, weight, *settings, mask)
            gradients[1] = rest[1]
        return tuple(gradients)

    return convolution_backward


def _sizes(
    convolution: Convolution,
) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]:
    shapes = convolution.image.shape, convolution.weight.shape
    return (*shapes, convolution.stride, convolution.padding)


def _patches(library: ctypes.CDLL, *, transposed: bool) -> Callable[..., torch.Tensor]:
    run = on_tensors.spread if transposed else on_tensors.gather

    def convolution(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *_: Any
    ) -> torch.Tensor:
        return run(library, channels_last(x), *dense(weight, bias))

    return convolution


def _patches_backward(library: ctypes.CDLL, *, transposed: bool) -> Callable[..., Any]:
    of_input = on_tensors.gather if transposed else on_tensors.spread

    def convolution_backward(
        grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *given: Any
    ) -> tuple[torch.Tensor | None, ...]:
        wanted = given[-1]
        grad, x, weight = channels_last(grad), channels_last(x), weight.contiguous()
        small, large = (x, grad) if transposed else (grad, x)
        return (
            of_input(library, grad, weight, None) if wanted[0] else None,
            on_tensors.weight_gradient(library, small, large, weight) if wanted[1] else None,
            on_tensors.channel_sums(library, grad) if wanted[2] else None,
        )

    return convolution_backward


def _fill(out: int, inputs: int, *kernel: int) -> bool:
    """Return whether the kernel of the weight gradient supports these channels."""
    if out % _LANES == 0:
        return inputs == 1 or inputs % _LANES == 0
    return set(kernel) == {1} and inputs % _LANES == 0

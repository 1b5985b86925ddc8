"""Convolutions: which are ours, and how they are called.

Of many channels, those that Winograd's way computes with fewer multiplications. Of few channels,
those of large images: there the library reaches a third to two thirds of the processor's speed,
and sums weight gradients with fifty times the error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from abele import _torch
from abele.kernels import on_tensors, winograd
from abele.kernels.on_tensors import CHANNELS_LAST

aten = torch.ops.aten

_Node = torch.fx.Node

# More weights than this leave the nearest cache, and the library is as fast.
_MOST_WEIGHTS = 32 * 32 * 9
# The kernel takes that many pixels of a row at once.
_LEAST_WIDTH = 16
_LANES = 8


def own_convolution(node: _Node, library: ctypes.CDLL) -> Callable[..., Any] | None:
    """What computes a convolution or its backward in the place of the library, if that is faster.

    Args:
        node: any node of a graph; images of its convolution are channels last.
        library: the kernels.
    """
    arguments: tuple[Any, ...] = node.args
    many = winograd.gains(node)
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
    if many or (plain and image.dim() == 4 and _sizes_fit(image, shape, padding)):
        return make(library, list(padding), slope, winograd=many)
    return None


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


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=CHANNELS_LAST)


def _forward(
    library: ctypes.CDLL, padding: list[int], slope: float, *, winograd: bool
) -> Callable[..., torch.Tensor]:
    settings: dict[str, Any] = {"layout": CHANNELS_LAST, "slope": slope, "winograd": winograd}

    def convolution(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *_: Any
    ) -> torch.Tensor:
        arguments = _rows(x), weight.contiguous(), bias, [1, 1], padding
        return on_tensors.conv(library, *arguments, **settings)

    return convolution


def _backward(
    library: ctypes.CDLL, padding: list[int], slope: float, *, winograd: bool
) -> Callable[..., Any]:
    del slope  # a convolution with activation has no backward
    how: dict[str, Any] = {"layout": CHANNELS_LAST, "winograd": winograd}

    def convolution_backward(
        grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *given: Any
    ) -> tuple[torch.Tensor | None, ...]:
        *settings, wanted = given
        grad, x, weight = _rows(grad), _rows(x), weight.contiguous()
        fills = winograd or _fill(*weight.shape[:2])
        ours = [wanted[0], wanted[1] and fills, wanted[2]]
        arguments = grad, x, weight, [1, 1], padding, ours
        gradients = on_tensors.conv_backward(library, *arguments, **how)
        if wanted[1] and not fills:
            mask = [False, True, False]
            rest = aten.convolution_backward(grad, x, weight, *settings, mask)
            gradients[1] = rest[1]
        return tuple(gradients)

    return convolution_backward


def _fill(out: int, inputs: int) -> bool:
    """Whether there is code for the gradient of a weight with so few channels."""
    return out % _LANES == 0 and (inputs == 1 or inputs % _LANES == 0)

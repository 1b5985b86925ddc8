"""Convolutions: how those that are ours are called; ``kernels/ways.py`` says which these are."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from abele.kernels import on_tensors, patches
from abele.kernels.convolution import Convolution, convolution_of
from abele.kernels.on_tensors import CHANNELS_LAST
from abele.kernels.ways import Way, way_of

aten = torch.ops.aten

_Node = torch.fx.Node

# The kernels of weight gradients hold so many channels.
_LANES = 8


def own_convolution(node: _Node, library: ctypes.CDLL) -> Callable[..., Any] | None:
    """What computes a convolution or its backward in the place of the library, if that is faster.

    Args:
        node: any node of a graph; images of its convolution are channels last.
        library: the kernels.
    """
    convolution = convolution_of(node)
    way = None if convolution is None else way_of(convolution)
    if convolution is None or way is None:
        return None
    padding, winograd = list(convolution.padding), way is Way.WINOGRAD
    if way is Way.PATCHES:
        make = _patches_backward if convolution.backward else _patches
        function = make(library, transposed=convolution.transposed)
    elif convolution.backward:
        function = _backward(library, padding, winograd=winograd)
    else:
        function = _forward(library, padding, convolution.slope, winograd=winograd)
    function.__name__ = name_of(convolution, way)
    return function


def name_of(convolution: Convolution, way: Way) -> str:
    """What reports call our kernels for a convolution."""
    return f"{way.name.lower()}_convolution{'_backward' if convolution.backward else ''}"


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


def _backward(library: ctypes.CDLL, padding: list[int], *, winograd: bool) -> Callable[..., Any]:
    how: dict[str, Any] = {"layout": CHANNELS_LAST, "winograd": winograd}

    def convolution_backward(
        grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *given: Any
    ) -> tuple[torch.Tensor | None, ...]:
        *settings, wanted = given
        grad, x, weight = _rows(grad), _rows(x), weight.contiguous()
        fills = winograd or _fill(*weight.shape)
        ours = [wanted[0], wanted[1] and fills, wanted[2]]
        arguments = grad, x, weight, [1, 1], padding, ours
        gradients = on_tensors.conv_backward(library, *arguments, **how)
        if wanted[1] and not fills:
            mask = [False, True, False]
            rest = aten.convolution_backward(grad, x, weight, *settings, mask)
            gradients[1] = rest[1]
        return tuple(gradients)

    return convolution_backward


def _patches(library: ctypes.CDLL, *, transposed: bool) -> Callable[..., torch.Tensor]:
    run = patches.spread if transposed else patches.gather

    def convolution(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *_: Any
    ) -> torch.Tensor:
        return run(library, _rows(x), weight.contiguous(), bias)

    return convolution


def _patches_backward(library: ctypes.CDLL, *, transposed: bool) -> Callable[..., Any]:
    of_input = patches.gather if transposed else patches.spread

    def convolution_backward(
        grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *given: Any
    ) -> tuple[torch.Tensor | None, ...]:
        wanted = given[-1]
        grad, x, weight = _rows(grad), _rows(x), weight.contiguous()
        small, large = (x, grad) if transposed else (grad, x)
        return (
            of_input(library, grad, weight, None) if wanted[0] else None,
            patches.weight_gradient(library, small, large, weight) if wanted[1] else None,
            patches.channel_sums(library, grad) if wanted[2] else None,
        )

    return convolution_backward


def _fill(out: int, inputs: int, *kernel: int) -> bool:
    """Whether there is code for the gradient of a weight with so few channels."""
    if out % _LANES == 0:
        return inputs == 1 or inputs % _LANES == 0
    return set(kernel) == {1} and inputs % _LANES == 0

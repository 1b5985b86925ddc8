"""Channels-last convolutions, max pools and upsampling by library kernels."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from abele import _torch
from abele.kernels import on_tensors
from abele.kernels.convolutions import (
    DIRECT,
    KERNELS,
    PATCHES,
    Convolution,
    Kernel,
    convolution_of,
    kernel_for,
)
from abele.kernels.on_tensors import CHANNELS_LAST, channels_last, dense
from abele.program import is_getitem
from abele.targets.cpu.op_by_op.kernels import OwnKernel

aten = torch.ops.aten

_Node = torch.fx.Node

# -- convolutions --------------------------------------------------------------------------------

# The kernels of weight gradients hold so many channels.
_LANES = 8


def _convolutions(kernel: Kernel) -> Iterator[OwnKernel]:
    """Yield registry rows of a convolution kernel: forward, with activation, and backward."""
    for operator in (
        aten.convolution.default,
        _torch.convolution_with_activation(),
        aten.convolution_backward.default,
    ):
        backward = operator is aten.convolution_backward.default
        yield OwnKernel(
            operator=operator,
            name=f"{kernel.name}_convolution{'_backward' if backward else ''}",
            kind=kernel.kind,
            function=functools.partial(_convolution, kernel),
            suits=functools.partial(_suits_convolution, kernel),
        )


def _suits_convolution(kernel: Kernel, node: _Node) -> bool:
    convolution = convolution_of(node)
    return convolution is not None and kernel_for(convolution) is kernel


def _convolution(
    kernel: Kernel, node: _Node, library: ctypes.CDLL, overwrite: bool
) -> Callable[..., Any]:
    del overwrite
    convolution = convolution_of(node)
    assert convolution is not None  # the kernel suits the node
    if kernel is PATCHES:
        make = _patches_backward if convolution.backward else _patches
        return make(library, transposed=convolution.transposed)
    if convolution.backward:
        return _backward(library, convolution, kernel)
    return _forward(library, convolution, kernel)


def _forward(
    library: ctypes.CDLL, convolution: Convolution, kernel: Kernel
) -> Callable[..., torch.Tensor]:
    how: dict[str, Any] = {"slope": convolution.slope, **_how(convolution, kernel)}
    run = on_tensors.conv(library, *_sizes(convolution), **how)

    def run_forward(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *_: Any
    ) -> torch.Tensor:
        bias = None if bias is None else bias.float()
        return run(channels_last(x), *dense(weight, bias))

    return run_forward


def _backward(library: ctypes.CDLL, convolution: Convolution, kernel: Kernel) -> Callable[..., Any]:
    weight_is_ours = kernel is not DIRECT or _fill(*convolution.weight.shape)
    bias_is_ours = convolution.image.dtype is torch.float32
    sizes, how = _sizes(convolution), _how(convolution, kernel)

    @functools.cache
    def prepared_for(*wanted: bool) -> on_tensors.Backward:
        return on_tensors.conv_backward(library, *sizes, wanted, **how)

    def convolution_backward(
        grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *given: Any
    ) -> tuple[torch.Tensor | None, ...]:
        *settings, (of_x, of_weight, of_bias) = given
        grad, x, weight = channels_last(grad), channels_last(x), weight.contiguous()
        run = prepared_for(of_x, of_weight and weight_is_ours, of_bias and bias_is_ours)
        gradients = run(grad, x, weight)
        if of_bias and not bias_is_ours:
            gradients[2] = grad.sum((0, 2, 3))
        if of_weight and not weight_is_ours:
            mask = [False, True, False]
            rest = aten.convolution_backward(grad, x, weight, *settings, mask)
            gradients[1] = rest[1]
        return tuple(gradients)

    return convolution_backward


def _how(convolution: Convolution, kernel: Kernel) -> dict[str, Any]:
    """Return the layout, the type and the function of a convolution's kernel."""
    dtype = convolution.image.dtype
    return {"layout": CHANNELS_LAST, "dtype": dtype, "function": kernel.function}


def _sizes(
    convolution: Convolution,
) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]:
    shapes = convolution.image.shape, convolution.weight.shape
    return (*shapes, convolution.stride, convolution.padding)


def _fill(out: int, inputs: int, *kernel: int) -> bool:
    """Return whether the weight gradient kernel supports a convolution's channel counts."""
    if out % _LANES == 0:
        return inputs == 1 or inputs % _LANES == 0
    return set(kernel) == {1} and inputs % _LANES == 0


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


# -- max pools of 2x2 ----------------------------------------------------------------------------


def has_places(node: _Node) -> bool:
    """Return whether a max pool's kernel stores the index of each maximum for backward."""
    return bool(_readers(node))


def suits_pool(node: _Node) -> bool:
    """Return whether the library kernel computes a max pool.

    Requires float32 batches, 2x2 windows that overlap neither each other nor a border, and that
    only a backward reads the indices, because the kernel's indices are relative to the window.
    """
    back = aten.max_pool2d_with_indices_backward.default
    alone = all(
        user.target is back and user.args[7] is places
        for places, users in _readers(node).items()
        for user in users
    )
    x, *settings = node.args
    return alone and _is_two_by_two(x.meta["val"], *settings)  # type: ignore[union-attr, arg-type]


def _is_two_by_two(
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> bool:
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
    """Return the readers of a max pool's indices, by the node that picks the indices."""
    picked = [user for user in node.users if is_getitem(user) and user.args[1] == 1]
    return {each: list(each.users) for each in picked if each.users}


def _max_pool(node: _Node, library: ctypes.CDLL, overwrite: bool) -> Callable[..., Any]:
    del overwrite
    places = has_places(node)

    def max_pool(x: torch.Tensor, *settings: Any) -> Sequence[torch.Tensor | None]:
        if not x.is_contiguous(memory_format=CHANNELS_LAST):
            return aten.max_pool2d_with_indices(x, *settings)
        return on_tensors.max_pool(library, x, layout=CHANNELS_LAST, places=places)

    return max_pool


def _max_pool_backward(
    node: _Node, library: ctypes.CDLL, overwrite: bool
) -> Callable[..., torch.Tensor]:
    del node, overwrite

    def max_pool_backward(grad: torch.Tensor, x: torch.Tensor, *settings: Any) -> torch.Tensor:
        places = settings[-1]
        if places.dtype is not torch.uint8:
            return aten.max_pool2d_with_indices_backward(grad, x, *settings)
        grad = channels_last(grad)
        return on_tensors.max_pool_backward(library, grad, x.shape, places, layout=CHANNELS_LAST)

    return max_pool_backward


# -- upsampling to twice the size ----------------------------------------------------------------


def _suits_upsampling(node: _Node) -> bool:
    """Return whether a node doubles float32 images, corners unaligned, or is its backward."""
    arguments: tuple[Any, ...] = node.args
    value, size, settings = arguments[0].meta["val"], arguments[1], list(arguments[2:])
    backward = node.target is aten.upsample_bilinear2d_backward.default
    shape, align_corners = settings.pop(0) if backward else value.shape, settings.pop(0)
    doubled = list(size) == [2 * each for each in shape[2:]] and not align_corners
    usual = all(scale in (None, 2.0) for scale in settings)
    return value.dtype is torch.float32 and doubled and usual and not node.kwargs


def _of_channels_last(
    run: Callable[[ctypes.CDLL, torch.Tensor], torch.Tensor],
    otherwise: Callable[..., torch.Tensor],
    node: _Node,
    library: ctypes.CDLL,
    overwrite: bool,
) -> Callable[..., torch.Tensor]:
    """Return a kernel for channels-last tensors that falls back to ATen for others."""
    del node, overwrite

    def function(x: torch.Tensor, *settings: Any) -> torch.Tensor:
        if not x.is_contiguous(memory_format=CHANNELS_LAST):
            return otherwise(x, *settings)
        return run(library, x)

    return function


KERNELS_OF_IMAGES = (
    *(row for kernel in KERNELS for row in _convolutions(kernel)),
    OwnKernel(
        operator=aten.max_pool2d_with_indices.default,
        name="max_pool",
        kind="pools",
        function=_max_pool,
        suits=suits_pool,
    ),
    OwnKernel(
        operator=aten.max_pool2d_with_indices_backward.default,
        name="max_pool_backward",
        kind="pools",
        function=_max_pool_backward,
    ),
    OwnKernel(
        operator=aten.upsample_bilinear2d.default,
        name="upsample",
        kind="upsampling",
        function=functools.partial(
            _of_channels_last, on_tensors.upsample, aten.upsample_bilinear2d
        ),
        suits=_suits_upsampling,
    ),
    OwnKernel(
        operator=aten.upsample_bilinear2d_backward.default,
        name="upsample_backward",
        kind="upsampling",
        function=functools.partial(
            _of_channels_last, on_tensors.upsample_backward, aten.upsample_bilinear2d_backward
        ),
        suits=_suits_upsampling,
    ),
)

"""Our kernels as functions of tensors: what is called in the place of an operator.

Each function does what the operator of the same name in ``abele/ops`` does, in place where
nobody else needs the argument.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.kernels.binding import Norm
from abele.kernels.on_tensors import channels_last, dense, threads_worth


def _prepared(
    library: ctypes.CDLL,
    shape: torch.Size,
    slope: float,
    momentum: float = 0.0,
    eps: float = 0.0,
) -> tuple[Any, Callable[[], int]]:
    """Return a norm of images of this shape for the kernels, and how many threads it is worth."""
    # As text, because a slope of -0.0 is another one than 0.0, to which it is equal.
    return _described(library, shape, slope.hex(), momentum, eps)


@functools.lru_cache(maxsize=4096)  # shapes of programs; the same at every step
def _described(
    library: ctypes.CDLL, shape: torch.Size, slope_hex: str, momentum: float, eps: float
) -> tuple[Any, Callable[[], int]]:
    slope, size, channels = float.fromhex(slope_hex), shape.numel(), shape[1]
    norm = Norm(size // channels, channels, momentum, eps, slope)
    return ctypes.byref(norm), threads_worth(library, size)


def _statistics(
    library: ctypes.CDLL, norm: Any, inputs: Sequence[torch.Tensor], threads: int
) -> tuple[list[torch.Tensor], bool]:
    """Statistics and new running ones, and whether backward needs nothing of x but y.

    Args:
        library: of kernels.
        norm: ``_prepared`` described it.
        inputs: x, weight, bias and the running statistics.
        threads: that compute it.
    """
    x, _, _, mean, var = inputs
    outputs = [x.new_empty((3, x.shape[1])), torch.empty_like(mean), torch.empty_like(var)]
    addresses = [each.data_ptr() for each in (*inputs, *outputs)]
    y_is_enough = ctypes.c_int32()
    library.abele_norm_statistics(norm, *addresses, ctypes.byref(y_is_enough), threads)
    return outputs, bool(y_is_enough)


def norm_activation(library: ctypes.CDLL, *, overwrite: bool) -> Callable[..., Any]:
    """Forward of ``abele::norm_activation``; may write y over x."""

    def norm_activation(
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        mean: torch.Tensor,
        var: torch.Tensor,
        momentum: float,
        eps: float,
        slope: float,
    ) -> tuple[torch.Tensor, ...]:
        x = channels_last(x)
        norm, worth = _prepared(library, x.shape, slope, momentum, eps)
        threads = worth()
        inputs = x, *dense(weight, bias, mean, var)
        (statistics, *new), y_is_enough = _statistics(library, norm, inputs, threads)
        y = x if overwrite and y_is_enough else torch.empty_like(x)
        addresses = [each.data_ptr() for each in (*inputs[:3], statistics)]
        library.abele_norm_apply(norm, *addresses, None, y.data_ptr(), threads)
        return y, y if y_is_enough else x, statistics, *new

    return norm_activation


def norm_activation_backward(library: ctypes.CDLL, *, overwrite: bool) -> Callable[..., Any]:
    """``abele::norm_activation_backward``; may write the gradient of x over that of y."""

    def norm_activation_backward(
        grad: torch.Tensor,
        kept: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        statistics: torch.Tensor,
        slope: float,
    ) -> tuple[torch.Tensor, ...]:
        grad, (weight, bias) = channels_last(grad), dense(weight, bias)
        norm, worth = _prepared(library, kept.shape, slope)
        grad_x = grad if overwrite else torch.empty_like(grad)
        grad_weight, grad_bias = torch.empty_like(weight), torch.empty_like(bias)
        inputs = [each.data_ptr() for each in (grad, kept, weight, bias, statistics)]
        outputs = [each.data_ptr() for each in (grad_x, grad_weight, grad_bias)]
        library.abele_norm_backward(norm, *inputs, *outputs, worth())
        return grad_x, grad_weight, grad_bias

    return norm_activation_backward


def norm_sum_activation(library: ctypes.CDLL, *, overwrite: bool) -> Callable[..., Any]:
    """Forward of ``abele::norm_sum_activation``; may write y over what is added."""

    def norm_sum_activation(
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        mean: torch.Tensor,
        var: torch.Tensor,
        added: torch.Tensor,
        momentum: float,
        eps: float,
        slope: float,
    ) -> tuple[torch.Tensor, ...]:
        x, added = channels_last(x), channels_last(added)
        norm, worth = _prepared(library, x.shape, slope, momentum, eps)
        threads = worth()
        y = added if overwrite else torch.empty_like(x)
        inputs = x, *dense(weight, bias, mean, var)
        # Backward needs x in any case: from y, what was added could not be told apart.
        (statistics, *new), _ = _statistics(library, norm, inputs, threads)
        addresses = [each.data_ptr() for each in (*inputs[:3], statistics, added)]
        library.abele_norm_apply(norm, *addresses, y.data_ptr(), threads)
        return y, statistics, *new

    return norm_sum_activation


def norm_sum_activation_backward(library: ctypes.CDLL, *, overwrite: bool) -> Callable[..., Any]:
    """``abele::norm_sum_activation_backward``; may write over the gradient of y."""

    def norm_sum_activation_backward(
        grad: torch.Tensor,
        more: torch.Tensor | None,
        y: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        statistics: torch.Tensor,
        slope: float,
    ) -> tuple[torch.Tensor, ...]:
        grad, more = channels_last(grad), None if more is None else channels_last(more)
        (weight,) = dense(weight)
        norm, worth = _prepared(library, x.shape, slope)
        masked, grad_x = grad if overwrite else torch.empty_like(x), torch.empty_like(x)
        grad_weight, grad_bias = torch.empty_like(weight), torch.empty_like(weight)
        second = None if more is None else more.data_ptr()
        inputs = [each.data_ptr() for each in (y, x, weight, statistics)]
        outputs = [each.data_ptr() for each in (masked, grad_x, grad_weight, grad_bias)]
        library.abele_norm_sum_backward(norm, grad.data_ptr(), second, *inputs, *outputs, worth())
        return masked, grad_x, grad_weight, grad_bias

    return norm_sum_activation_backward


def scale_shift_activation(library: ctypes.CDLL, *, overwrite: bool) -> Callable[..., Any]:
    """``abele::scale_shift_activation``; may write y over x."""

    def scale_shift_activation(
        x: torch.Tensor,
        scale: torch.Tensor,
        shift: torch.Tensor,
        slope: float,
    ) -> torch.Tensor:
        x, (scale, shift) = channels_last(x), dense(scale, shift)
        y = x if overwrite else torch.empty_like(x)
        pointers = [each.data_ptr() for each in (x, scale, shift, y)]
        norm, worth = _prepared(library, x.shape, slope)
        library.abele_scale_shift(norm, *pointers, worth())
        return y

    return scale_shift_activation

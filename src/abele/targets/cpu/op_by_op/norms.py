"""Channels-last normalizations by library kernels, in place where the argument is dead.

Each function computes the operator of the same name in ``abele.ops.norm_activation``. Its first
arguments are the library and whether it may overwrite a tensor; the rest are the operator's.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.kernels.binding import TYPES, Norm
from abele.kernels.on_tensors import channels_last, threads_worth
from abele.ops import norm_activation as operators
from abele.targets.cpu.op_by_op.kernels import OwnKernel, of_library

Tensor = torch.Tensor
_Results = tuple[Tensor, ...]


def _prepared(
    library: ctypes.CDLL,
    images: Tensor,
    slope: float,
    momentum: float = 0.0,
    eps: float = 0.0,
    in_16_bits: bool = False,
) -> tuple[Any, Callable[[], int]]:
    """Return the kernel descriptor of a norm, and a function of its useful thread count."""
    # As text, because a slope of -0.0 is another one than 0.0, to which it is equal.
    return _described(
        library, images.shape, slope.hex(), momentum, eps, in_16_bits, TYPES[images.dtype]
    )


@functools.lru_cache(maxsize=4096)  # shapes of programs; the same at every step
def _described(
    library: ctypes.CDLL,
    shape: torch.Size,
    slope_hex: str,
    momentum: float,
    eps: float,
    in_16: bool,
    dtype: int,
) -> tuple[Any, Callable[[], int]]:
    slope, size, channels = float.fromhex(slope_hex), shape.numel(), shape[1]
    norm = Norm(size // channels, channels, momentum, eps, slope, in_16 or dtype, dtype)
    return ctypes.byref(norm), threads_worth(library, size)


def _dense(*vectors: Tensor) -> list[Tensor]:
    """Return contiguous float32 vectors, converted if they are not."""
    return [each.float().contiguous() for each in vectors]


def _like(vectors: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """Return vectors in the types of others."""
    return [each.to(other.dtype) for each, other in zip(vectors, others, strict=True)]


def _addresses(*tensors: Tensor) -> list[int]:
    return [each.data_ptr() for each in tensors]


def _statistics(
    library: ctypes.CDLL, norm: Any, inputs: Sequence[Tensor], threads: int
) -> tuple[list[Tensor], bool]:
    """Compute batch and running statistics, and whether y suffices for backward.

    Args:
        library: the loaded kernel library.
        norm: the descriptor of ``_prepared``.
        inputs: x, weight, bias and the running statistics.
        threads: number of threads.
    """
    *_, mean, var = inputs
    outputs = [mean.new_empty((3, *mean.shape)), torch.empty_like(mean), torch.empty_like(var)]
    y_is_enough = ctypes.c_int32()
    pointers = _addresses(*inputs, *outputs)
    library.abele_norm_statistics(norm, *pointers, ctypes.byref(y_is_enough), threads)
    return outputs, bool(y_is_enough)


def norm_activation(
    in_16_bits: bool, library: ctypes.CDLL, overwrite: bool, *given: Any
) -> _Results:
    """Compute ``abele::norm_activation`` (batch norm and activation); may write y over x."""
    x, weight, bias, mean, var, momentum, eps, slope = given
    x = channels_last(x)
    norm, worth = _prepared(library, x, slope, momentum, eps, in_16_bits)
    threads = worth()
    inputs = x, *_dense(weight, bias, mean, var)
    (statistics, *new), y_is_enough = _statistics(library, norm, inputs, threads)
    y = x if overwrite and y_is_enough else torch.empty_like(x)
    addresses = _addresses(*inputs[:3], statistics)
    library.abele_norm_apply(norm, *addresses, None, y.data_ptr(), threads)
    return y, y if y_is_enough else x, statistics, *_like(new, (mean, var))


def norm_activation_backward(
    library: ctypes.CDLL, overwrite: bool, *given: Any
) -> tuple[Tensor, ...]:
    """Compute ``abele::norm_activation_backward``; may write the input gradient over ``grad``."""
    grad, kept, *parameters, statistics, slope = given
    grad, (weight, bias) = channels_last(grad), _dense(*parameters)
    norm, worth = _prepared(library, kept, slope)
    results = (
        grad if overwrite else torch.empty_like(grad),
        torch.empty_like(weight),
        torch.empty_like(bias),
    )
    pointers = _addresses(grad, kept, weight, bias, statistics, *results)
    library.abele_norm_backward(norm, *pointers, worth())
    return results[0], *_like(results[1:], parameters)


def norm_sum_activation(library: ctypes.CDLL, overwrite: bool, *given: Any) -> _Results:
    """Compute ``abele::norm_sum_activation`` (norm, sum, activation), perhaps in place."""
    x, weight, bias, mean, var, added, momentum, eps, slope = given
    x, added = channels_last(x), channels_last(added)
    norm, worth = _prepared(library, x, slope, momentum, eps)
    threads = worth()
    y = added if overwrite else torch.empty_like(x)
    inputs = x, *_dense(weight, bias, mean, var)
    # Backward needs x in any case: from y, what was added could not be told apart.
    (statistics, *new), _ = _statistics(library, norm, inputs, threads)
    addresses = _addresses(*inputs[:3], statistics, added, y)
    library.abele_norm_apply(norm, *addresses, threads)
    return y, statistics, *_like(new, (mean, var))


def norm_sum_activation_backward(
    library: ctypes.CDLL, overwrite: bool, *given: Any
) -> tuple[Tensor, ...]:
    """Compute ``abele::norm_sum_activation_backward``; may write over the gradient of y."""
    grad, more, y, x, parameter, statistics, slope = given
    grad, more = channels_last(grad), None if more is None else channels_last(more)
    (weight,) = _dense(parameter)
    norm, worth = _prepared(library, x, slope)
    results = (
        grad if overwrite else torch.empty_like(x),
        torch.empty_like(x),
        torch.empty_like(weight),
        torch.empty_like(weight),
    )
    second = None if more is None else more.data_ptr()
    pointers = _addresses(y, x, weight, statistics, *results)
    library.abele_norm_sum_backward(norm, grad.data_ptr(), second, *pointers, worth())
    return *results[:2], *_like(results[2:], (parameter, parameter))


def scale_shift_activation(library: ctypes.CDLL, overwrite: bool, *given: Any) -> Tensor:
    """Compute ``abele::scale_shift_activation``; may write y over x."""
    x, scale, shift, slope = given
    x, (scale, shift) = channels_last(x), _dense(scale, shift)
    y = x if overwrite else torch.empty_like(x)
    norm, worth = _prepared(library, x, slope)
    library.abele_scale_shift(norm, *_addresses(x, scale, shift, y), worth())
    return y


def _saves_16_bits(node: torch.fx.Node) -> bool:
    """Return whether what a norm saves for backward is rounded to 16 bits."""
    return any(user.target is operators.saved for each in node.users for user in each.users)


NORMS = (
    OwnKernel(
        operator=operators.forward,
        name="norm_activation",
        kind="norms",
        function=lambda node, library, overwrite: functools.partial(
            norm_activation, _saves_16_bits(node), library, overwrite
        ),
        over=0,
    ),
    of_library(operators.backward, "norms", norm_activation_backward, 0),
    of_library(operators.of_sum, "norms", norm_sum_activation, 5),
    of_library(operators.of_sum_backward, "norms", norm_sum_activation_backward, 0),
    of_library(operators.evaluation, "norms", scale_shift_activation, 0),
)

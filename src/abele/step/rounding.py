"""Stochastic rounding: a value between two halves becomes either, and the mean is exact.

An update smaller than half the distance to the next half is lost at every step when it is rounded
to nearest, and the weight never moves. Rounded at random, it is applied as often as the expected
weight requires (Gupta et al., arXiv 1502.02551, section 3).

Only float16 is rounded this way; bfloat16 rounds to nearest, as everything in torch does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Write = Callable[[torch.Tensor, torch.Tensor], object]

_LARGEST = torch.finfo(torch.float16).max
# Fields of float32 bits: halves are spaced by 2^-10 of their power of two, at least by 2^-24.
_EXPONENT = 0x7F800000
_SMALLEST_NORMAL = (127 - 14) << 23
_TEN_BINADES = 10 << 23


def stochastic_half(value: torch.Tensor) -> torch.Tensor:
    """Round float32 values to float16 so that the expected result equals the value.

    Halves stay what they are. Beyond the largest half, where only one neighbour is finite, values
    round to nearest; infinities and NaN pass. Draws one random number per element from the stream
    of the program.

    Returns:
        float16, same shape.
    """
    bits = value.view(torch.int32) & _EXPONENT
    spacing = (bits.clamp(min=_SMALLEST_NORMAL) - _TEN_BINADES).view(torch.float32)
    # Dividing by a power of two and taking the fraction of so small a number are both exact.
    steps = value / spacing
    below = steps.floor()
    up = torch.rand_like(value) < steps - below
    rounded = (below + up) * spacing
    return torch.where(value.abs() < _LARGEST, rounded, value).to(torch.float16)


def write_nearest(target: torch.Tensor, value: torch.Tensor) -> None:
    """Write ``value`` into ``target``, rounding to nearest, ties to even."""
    target.copy_(value)


def write_stochastic(target: torch.Tensor, value: torch.Tensor) -> None:
    """Write ``value`` into ``target``; round at random where the type narrows to float16."""
    if target.dtype is torch.float16 and value.dtype is not torch.float16:
        value = stochastic_half(value.float())
    target.copy_(value)


def writer(*, stochastic: bool) -> Write:
    """Return how an update writes its results."""
    return write_stochastic if stochastic else write_nearest

"""Convolutions of 1x1 of channels-last images: which our products compute faster."""

from __future__ import annotations

import math

from abele.kernels.convolution import Convolution
from abele.kernels.prepared import result_shape

# Fewer leave columns of a product's tiles empty.
_LEAST_CHANNELS = 32
_LEAST_PIXELS = 32
_FLOAT = 4


def gains(convolution: Convolution) -> bool:
    """Return whether our products are faster than the library."""
    if not convolution.suits_kernels:
        return False
    outputs, inputs, *kernel = convolution.weight.shape
    return (
        set(kernel) == {1}
        and not any(convolution.padding)
        and not convolution.transposed
        and convolution.groups == 1
        and convolution.slope == 1.0
        and min(outputs, inputs) >= _LEAST_CHANNELS
        and pixels(convolution) >= _LEAST_PIXELS
    )


def pixels(convolution: Convolution) -> int:
    """Return how many pixels all results have together."""
    sizes = convolution.image.shape, convolution.weight.shape
    count, _, *pixels = result_shape(*sizes, convolution.stride, convolution.padding)
    return count * math.prod(pixels)


def scratch(convolution: Convolution) -> int:
    """Return the bytes that ``conv_pointwise.cpp`` takes for pixels that a stride leaves apart."""
    if set(convolution.stride) == {1}:
        return 0
    times = 2 if convolution.backward else 1
    return times * _FLOAT * pixels(convolution) * convolution.weight.shape[1]

"""Which convolutions of channels-last images the direct kernels compute faster than the library.

Those of large images with few channels: there the library reaches a third to two thirds of the
processor's speed, and sums weight gradients with fifty times the error. The numbers behind the
limits come from ``benchmarks/convolutions.py``.
"""

from __future__ import annotations

import torch

from abele.kernels.convolution import Convolution

# More weights than this leave the nearest cache, and the library is as fast.
_MOST_WEIGHTS = 32 * 32 * 9
# The kernel takes that many pixels of a row at once.
_LEAST_WIDTH = 16
# With so few channels and registers of eight, transforms take Winograd's way as long as it saves
# with multiplications.
_MOST_CHANNELS_OF_HALVES = 16


def gains(convolution: Convolution) -> bool:
    """Return whether the direct kernels are faster than the library."""
    _, _, height, width = convolution.weight.shape
    return (
        convolution.suits_kernels
        and convolution.moves_by_one
        and height == width
        and width in (1, 3, 5)
        and set(convolution.padding) == {width // 2}
        and convolution.image.shape[3] >= _LEAST_WIDTH
        and convolution.weight.numel() <= _MOST_WEIGHTS
    )


def gains_over_winograd(convolution: Convolution) -> bool:
    """Return whether they are also faster than Winograd's way."""
    return (
        gains(convolution)
        and torch.backends.cpu.get_cpu_capability() == "AVX2"
        and max(convolution.weight.shape[:2]) <= _MOST_CHANNELS_OF_HALVES
    )

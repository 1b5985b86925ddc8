"""Which convolutions of channels-last images the direct kernels compute faster than the library.

Those of large images with few channels: there the library reaches a third to two thirds of the
processor's speed, and sums weight gradients with fifty times the error. The numbers behind the
limits come from ``benchmarks/convolutions.py``.
"""

from __future__ import annotations

import torch

from abele import processor
from abele.kernels.convolution import Convolution

# More weights than this leave the nearest cache, and the library is as fast.
_MOST_WEIGHTS = 32 * 32 * 9
# The kernel takes that many pixels of a row at once.
_LEAST_WIDTH = 16
# With so few channels transforms take Winograd's way as long as it saves with multiplications,
# where these are fast beside memory.
_MOST_CHANNELS_WITHOUT_TRANSFORMS = 16
# Processors that have it multiply two registers of sixteen at a time; others that have such
# registers multiply one, or take two turns for it.
_MULTIPLIES_TWO = "amx_tile"


def gains(convolution: Convolution) -> bool:
    """Return whether the direct kernels are faster than the library."""
    if not convolution.suits_kernels:  # there may be one dimension of pixels, or three
        return False
    _, _, height, width = convolution.weight.shape
    return (
        convolution.moves_by_one
        and height == width
        and width in (1, 3, 5)
        and set(convolution.padding) == {width // 2}
        and convolution.image.shape[3] >= _LEAST_WIDTH
        and convolution.weight.numel() <= _MOST_WEIGHTS
    )


def gains_over_winograd(convolution: Convolution) -> bool:
    """Return whether they are also faster than Winograd's way."""
    # From instructions and not from a clock: results have the same bits in every run.
    capability = torch.backends.cpu.get_cpu_capability()
    fast = capability == "AVX2" or processor.has(_MULTIPLIES_TWO)
    channels = max(convolution.weight.shape[:2])
    return gains(convolution) and fast and channels <= _MOST_CHANNELS_WITHOUT_TRANSFORMS

"""Which convolutions the kernels compute by Winograd's way faster than others.

It needs less than half of the multiplications, but has to transform images, weights and results;
that is worth it from sixteen channels. The numbers behind the limits come from
``benchmarks/convolutions.py``.
"""

from __future__ import annotations

import torch

from abele.kernels.convolution import Convolution

# Registers hold so many channels; those that are not there are computed in vain.
_LANES, _MOST_FILLED = 16, 1.25
_LEAST_CHANNELS = 16
# Likewise outputs of a tile of 2x2 that lie beside the image.
_MOST_TILED = 1.5


def gains(convolution: Convolution) -> bool:
    """Return whether Winograd's way is the fastest."""
    image, kernel = convolution.image.shape, convolution.weight.shape
    padding = set(convolution.padding)
    return (
        convolution.suits_kernels
        and convolution.moves_by_one
        and kernel[2:] == (3, 3)
        and padding in ({0}, {1})
        and _fills(image, kernel, padding.pop())
    )


def _fills(image: torch.Size, kernel: torch.Size, padding: int) -> bool:
    """Whether little is computed that is then thrown away."""
    pixels = [size + 2 * padding - 2 for size in image[2:]]
    if min(*pixels, image[0]) < 1:
        return False
    tiled = 1.0
    for size in pixels:
        tiled *= (size + size % 2) / size
    return tiled <= _MOST_TILED and all(
        count >= _LEAST_CHANNELS and -(-count // _LANES) * _LANES <= _MOST_FILLED * count
        for count in kernel[:2]
    )

"""Which convolutions the kernels compute by Winograd's way faster than others.

It needs less than half of the multiplications, but has to transform images, weights and results;
that is worth it from sixteen channels. Where halves of registers multiply as fast as whole ones,
channels need fill only these. The numbers behind the limits come from
``benchmarks/convolutions.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from abele import processor
from abele.kernels.convolution import Convolution

# Registers hold so many channels; those that are not there are computed in vain.
_WHOLE, _MOST_FILLED = 16, 1.25
_HALF = _WHOLE // 2
_LEAST_CHANNELS = 16
# AMD's processors have the first; those with the second multiply whole registers in one step.
_OF_AMD, _IN_ONE_STEP = "clzero", "avx512_vp2intersect"
# Likewise outputs of a tile of 2x2 that lie beside the image.
_MOST_TILED = 1.5


def gains(convolution: Convolution) -> bool:
    """Return whether Winograd's way is the fastest."""
    return _has_code(convolution) and lanes(convolution) is not None


def has_many_channels(convolution: Convolution) -> bool:
    """Return whether it is, with channels that fill whole registers."""
    return _has_code(convolution) and _fill(convolution.weight.shape[:2], _WHOLE)


def lanes(convolution: Convolution) -> int | None:
    """Return how many channels the registers hold that suit; ``None``: too few would be there.

    The same choice as in ``conv_winograd.cpp``.
    """
    channels = convolution.weight.shape[:2]
    if _fill(channels, _WHOLE):
        return _WHOLE
    return _HALF if _halves_are_as_fast() and _fill(channels, _HALF) else None


def _halves_are_as_fast() -> bool:
    """Whether a processor has registers of sixteen, and multiplies one in two steps."""
    capability = torch.backends.cpu.get_cpu_capability()
    in_two_steps = processor.has(_OF_AMD) and not processor.has(_IN_ONE_STEP)
    return capability == "AVX512" and in_two_steps


def _has_code(convolution: Convolution) -> bool:
    image, kernel = convolution.image.shape, convolution.weight.shape
    padding = set(convolution.padding)
    return (
        convolution.suits_kernels
        and convolution.moves_by_one
        and kernel[2:] == (3, 3)
        and padding in ({0}, {1})
        and _is_tiled(image, padding.pop())
    )


def _is_tiled(image: torch.Size, padding: int) -> bool:
    """Whether few outputs lie beside the image."""
    pixels = [size + 2 * padding - 2 for size in image[2:]]
    if min(*pixels, image[0]) < 1:
        return False
    tiled = 1.0
    for size in pixels:
        tiled *= (size + size % 2) / size
    return tiled <= _MOST_TILED


def _fill(channels: Sequence[int], lanes: int) -> bool:
    """Whether channels fill most of registers of so many."""
    return all(
        count >= _LEAST_CHANNELS and -(-count // lanes) * lanes <= _MOST_FILLED * count
        for count in channels
    )

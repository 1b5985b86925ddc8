"""Sums of each channel of images, by many blocks for each channel, as parts of launches.

Torch and cuDNN give a channel to one block, which leaves most of a GPU idle where images are large
and channels few.
"""

from __future__ import annotations

from typing import Any

import torch

from abele.targets.cuda.emitted.blocks import call
from abele.targets.translation.places import Place

# Elements of a channel that a block reads, as in device.h.
_OF_BLOCK = 4096
# Fewer pixels lie too far apart to be read by neighbouring threads.
_LEAST_PIXELS = 16
_LARGEST_INDEX = 2**31


def usable(x: Place) -> bool:
    """Return whether channels of images [samples, channels, ...] are summed by our kernel."""
    small = x.size < _LARGEST_INDEX
    return x.dtype is torch.float32 and x.size > 0 and small and _pixels(x) >= _LEAST_PIXELS


def sizes(x: Place) -> tuple[int, int, int]:
    """Channels, pixels of an image, and elements of a channel."""
    return x.shape[1], _pixels(x), x.size // x.shape[1]


def parts_of(x: Place) -> tuple[int, int]:
    """Channels, and parts of each."""
    return x.shape[1], -(-sizes(x)[-1] // _OF_BLOCK)


def summed(translator: Any, x: Place, result: Place) -> None:
    """Add what sums each channel.

    Args:
        translator: of the program.
        x: contiguous images that are ``usable``.
        result: a number for each channel.
    """
    channels, parts = parts_of(x)
    sums = result if parts == 1 else translator.new((channels, parts), x.dtype)
    translator.add(call("channel_sums", [x], [sums], channels * parts, sizes(x)))
    if parts > 1:
        translator.add(call("channel_sum", [sums], [result], channels, [parts]))


def _pixels(x: Place) -> int:
    return x.size // (x.shape[0] * x.shape[1])

"""Sums of each channel of images, by many blocks for each channel, as parts of launches.

Torch and cuDNN give a channel to one block, which leaves most of a GPU idle where images are large
and channels few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from abele.targets.cuda.emitted.blocks import Blocks
from abele.targets.translation.places import Place

# Elements of a channel that a block reads, as in device.h.
_OF_BLOCK = 4096
# Fewer pixels lie too far apart to be read by neighbouring threads.
_LEAST_PIXELS = 16
_LARGEST_INDEX = 2**31


def usable(x: Place) -> bool:
    """Whether channels of images [samples, channels, ...] are summed here."""
    small = x.size < _LARGEST_INDEX
    return x.dtype is torch.float32 and x.size > 0 and small and _pixels(x) >= _LEAST_PIXELS


def sizes(x: Place) -> tuple[int, int, int]:
    """Channels, pixels of an image, and elements of a channel."""
    return x.shape[1], _pixels(x), x.size // x.shape[1]


def parts_of(x: Place) -> tuple[int, int]:
    """Channels, and parts of each."""
    return x.shape[1], -(-sizes(x)[-1] // _OF_BLOCK)


def call(
    name: str,
    reads: list[Place],
    writes: list[Place],
    blocks: int,
    numbers: Sequence[int],
    settings: Sequence[float] = (),
) -> Blocks:
    """A function of device.h that is given numbers, settings, what it reads, and what it writes."""
    count = len(reads) + len(writes)
    arguments = [
        *(f"abele::number(p[{count + i}])" for i in range(len(numbers))),
        *(f"{each!r}f" for each in settings),
        *(f"(const float*)p[{i}]" for i in range(len(reads))),
        *(f"(float*)p[{i}]" for i in range(len(reads), count)),
    ]
    body = f"abele::{name}(block, {', '.join(arguments)});"
    return Blocks(reads, writes, name, body, blocks, numbers=tuple(numbers))


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

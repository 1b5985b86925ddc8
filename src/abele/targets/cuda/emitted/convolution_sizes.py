"""Convolutions that blocks of threads compute faster than libraries, by their sizes.

Measured on an H200 against cuDNN (``benchmarks/records/gpu-convolutions_*.json``): with eight
channels 3 x 3 is four times as fast, with 24 about as fast, and 1 x 1 is faster up to 64.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

#: By taps: for so many channels that are summed, pixels of a batch from which on cuDNN is slower.
LEAST_PIXELS = {9: ((16, 1), (24, 8192), (64, 32768)), 1: ((64, 1),)}
#: By taps: channels of images and results up to which cuDNN is slower for gradients of weights.
MOST_CHANNELS_OF_WEIGHTS = {9: 32, 1: 64}
_LARGEST_INDEX = 2**31


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a convolution that keeps the size of its images.

    Attributes:
        samples: of the batch.
        channels: of the images.
        results: channels of what it returns.
        height: of images.
        width: of images.
        taps: of each weight: nine or one.
    """

    samples: int
    channels: int
    results: int
    height: int
    width: int
    taps: int

    @property
    def pixels(self) -> int:
        """Of all images of a channel."""
        return self.samples * self.height * self.width

    def turned(self) -> Sizes:
        """Those of the gradient of the images."""
        return dataclasses.replace(self, channels=self.results, results=self.channels)

    def is_ours(self) -> bool:
        """Whether results are computed here."""
        limits = LEAST_PIXELS[self.taps]
        return any(self.channels <= n and self.pixels >= least for n, least in limits)

    def weights_are_ours(self) -> bool:
        """Whether gradients of weights are computed here."""
        return max(self.channels, self.results) <= MOST_CHANNELS_OF_WEIGHTS[self.taps]


def sizes_of(x: Any, weight: Any, settings: tuple[Any, ...]) -> Sizes | None:
    """Sizes of a convolution of which there are kernels here; None if it is another.

    Args:
        x: images, as a tensor or a place.
        weight: the same.
        settings: stride, padding, dilation, transposed, padding of results, and groups.
    """
    stride, padding, dilation, transposed, _, groups = settings
    if {x.dtype, weight.dtype} != {torch.float32} or len(x.shape) != 4 or transposed or groups != 1:
        return None
    tall, wide = weight.shape[2:]
    border = [*padding]
    plain = {*stride, *dilation} == {1} and (tall, wide, border) in ((3, 3, [1, 1]), (1, 1, [0, 0]))
    samples, channels, height, width = map(int, x.shape)
    results = int(weight.shape[0])
    largest = samples * max(channels, results) * height * width
    if not plain or not largest or not channels or not results or largest >= _LARGEST_INDEX:
        return None
    return Sizes(samples, channels, results, height, width, tall * wide)

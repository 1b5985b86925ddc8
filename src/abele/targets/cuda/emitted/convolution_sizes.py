"""Convolutions that blocks of threads compute faster than libraries, by their sizes.

Measured on an H200 against cuDNN (``benchmarks/records/gpu-convolutions_*.json``): with eight
channels 3 x 3 is four times as fast, with 24 about as fast, and 1 x 1 is faster up to 64.
"""

from __future__ import annotations

import dataclasses

import torch

from abele.kernels.convolutions import convolution_of

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


def sizes_of(node: torch.fx.Node) -> Sizes | None:
    """Return the sizes of a convolution, or of its backward, with kernels here; None for others."""
    convolution = convolution_of(node)
    if convolution is None or not convolution.moves_by_one:
        return None
    x, weight = convolution.image, convolution.weight
    if {x.dtype, weight.dtype} != {torch.float32} or x.dim() != 4:
        return None
    samples, channels, height, width = map(int, x.shape)
    results, _, tall, wide = map(int, weight.shape)
    largest = samples * max(channels, results) * height * width
    plain = (tall, wide, convolution.padding) in ((3, 3, (1, 1)), (1, 1, (0, 0)))
    if not plain or not largest or not channels or not results or largest >= _LARGEST_INDEX:
        return None
    return Sizes(samples, channels, results, height, width, tall * wide)

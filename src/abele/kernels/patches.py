"""Convolutions whose windows lie side by side, and transposed ones: which are products, and calls.

Kernel and stride are equal, so that each pixel of the small images belongs to a window of the large
ones; see ``conv_patches.cpp``. The library reaches a third of the processor's speed with them.
"""

from __future__ import annotations

import ctypes

import torch

from abele.kernels import binding
from abele.kernels.convolution import Convolution
from abele.kernels.on_tensors import CHANNELS_LAST, pointer

# Registers hold so many channels.
_LANES = 16
# Rows of small images that are shorter leave tiles of a product empty.
_LEAST_WIDTH = 8


def gains(convolution: Convolution) -> bool:
    """Return whether our products are faster than the library."""
    small, large, *kernel = convolution.weight.shape
    if not convolution.suits_kernels or list(convolution.stride) != kernel:
        return False
    sizes = convolution.image.shape[2:]
    width = sizes[1] if convolution.transposed else sizes[1] // kernel[1]
    return (
        max(kernel) > 1
        and not any(convolution.padding)
        and not any(convolution.output_padding)
        and {*convolution.dilation, convolution.groups} == {1}
        and convolution.slope == 1.0
        and (convolution.transposed or not any(map(_remainder, sizes, kernel)))
        and width >= _LEAST_WIDTH
        and small % _LANES == 0
        and kernel[1] * large % _LANES == 0
    )


def _remainder(size: int, window: int) -> int:
    return size % window


def spread(
    library: ctypes.CDLL, small: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return a transposed convolution, or the gradient of the input of a plain one.

    Args:
        library: the kernels.
        small: float32 ``[N, S, H, W]``, channels last.
        weight: float32 ``[S, L, h, w]``, contiguous.
        bias: float32 ``[L]``.

    Raises:
        CorruptExecutable: there is no code for so many channels.
        MemoryError: there is no memory.
        ValueError: a tensor does not lie as it has to.
    """
    images, _, height, width = small.shape
    _, channels, high, wide = weight.shape
    shape = images, channels, height * high, width * wide
    large = torch.empty(shape, memory_format=CHANNELS_LAST)
    pointers = pointer(small, CHANNELS_LAST), pointer(weight), pointer(bias)
    threads = _threads(library, small, weight)
    library.abele_patches_spread(_describe(small, weight), *pointers, large.data_ptr(), threads)
    return large


def gather(
    library: ctypes.CDLL, large: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return a plain convolution, or the gradient of the input of a transposed one.

    Takes and raises what ``spread`` does; ``large`` is ``[N, L, H h, W w]``, ``bias`` ``[S]``.
    """
    images, _, height, width = large.shape
    channels, _, high, wide = weight.shape
    shape = images, channels, height // high, width // wide
    small = torch.empty(shape, memory_format=CHANNELS_LAST)
    pointers = pointer(large, CHANNELS_LAST), pointer(weight), pointer(bias)
    threads = _threads(library, small, weight)
    library.abele_patches_gather(_describe(small, weight), *pointers, small.data_ptr(), threads)
    return small


def weight_gradient(
    library: ctypes.CDLL, small: torch.Tensor, large: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of the weight of both; takes and raises what ``spread`` does."""
    result = torch.empty(weight.shape)
    pointers = pointer(small, CHANNELS_LAST), pointer(large, CHANNELS_LAST), result.data_ptr()
    threads = _threads(library, small, weight)
    library.abele_patches_weight(_describe(small, weight), *pointers, threads)
    return result


def channel_sums(library: ctypes.CDLL, x: torch.Tensor) -> torch.Tensor:
    """Return the sums of each channel of channels-last images; raises what ``spread`` does."""
    images, channels, height, width = x.shape
    sums = torch.empty(channels)
    threads = binding.threads_for(library, x.numel())
    sizes = images * height, width, channels
    library.abele_channel_sums(*sizes, pointer(x, CHANNELS_LAST), sums.data_ptr(), threads)
    return sums


def _describe(small: torch.Tensor, weight: torch.Tensor) -> ctypes.Structure:
    images, _, height, width = small.shape
    return binding.Patches(images, height, width, *weight.shape)


def _threads(library: ctypes.CDLL, small: torch.Tensor, weight: torch.Tensor) -> int:
    return binding.threads_for(library, 0, small.numel() * weight[0].numel())

"""The tensors of a convolution, and which code of torch computes it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

#: Images from which on those of one place are brought into another order by one thread, too.
_MANY = 16
#: Elements up to which torch itself convolves a single image.
_SMALL_IMAGE = 20480
_OF_IMAGES = 4  # dimensions
_CHANNELS_LAST = {_OF_IMAGES: torch.channels_last, 5: torch.channels_last_3d}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convolution:
    """The tensors of a convolution: image, weight and result, each ``[N, C, H, W]``; no data.

    Attributes:
        x, w, y: image, weight and result.
        stride, padding: of the window, for each axis of an image.
        transposed: from the result of a plain one back to its image.
        channels_last: the library computes with channels that lie last.
        bias: there is one; said of forward alone.
    """

    x: torch.Tensor
    w: torch.Tensor
    y: torch.Tensor
    stride: list[int]
    padding: list[int]
    transposed: bool
    channels_last: bool
    bias: bool = False

    @property
    def strided(self) -> bool:
        """The window moves by more than one."""
        return max(self.stride) > 1

    @property
    def pointwise(self) -> bool:
        """Each element of the result is made of one place of the image."""
        return math.prod(self.w.shape[2:]) == 1

    @property
    def as_they_lie(self) -> bool:
        """A product of matrices: nothing is brought into another order."""
        if not self.pointwise or self.strided or self.transposed or self.by_columns:
            return False
        return self.x.shape[0] < _MANY and torch.get_num_threads() == 1

    @property
    def by_columns(self) -> bool:
        """Torch itself convolves: in half, and one image that is small."""
        if self.x.dtype is torch.float16:
            return True
        large = self.x.shape[0] > 1 or self.x.numel() > _SMALL_IMAGE or min(self.w.shape[2:]) > 3
        few = self.x.shape[0] < _MANY and torch.get_num_threads() == 1
        if few and self.transposed and self.pointwise and not self.strided:
            return True
        if large or self.grouped:
            return False
        return self.x.dim() == _OF_IMAGES or not (self.transposed or self.strided)

    @property
    def grouped(self) -> bool:
        """Not all channels of a result are made of all of the image."""
        return self.w.shape[1] != self.x.shape[1] and not self.transposed

    def copied(self, images: torch.Tensor) -> int:
        """Bytes of images that are copied first, because others lie between their elements."""
        last = self.channels_last and _lies_channels_last(images)
        return 0 if images.is_contiguous() or last else images.nbytes

    @property
    def groups(self) -> int:
        """Groups of channels; 1 also where it is transposed."""
        return self.x.shape[1] // self.w.shape[1] if self.grouped else 1

    def of_group(self) -> Convolution:
        """The convolution of one group of channels."""
        x, w, y = (
            each.narrow(axis, 0, each.shape[axis] // self.groups)
            for each, axis in ((self.x, 1), (self.w, 0), (self.y, 1))
        )
        return dataclasses.replace(self, x=x, w=w, y=y)


def of(
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    rest: Any,
    channels_last: bool,
    *,
    bias: bool = False,
) -> Convolution:
    """A convolution; ``rest`` are a node's arguments from its stride on."""
    last = channels_last or _lies_channels_last(x) or _lies_channels_last(w)
    axes = x.dim() - 2
    stride, padding = ([*each] * (axes if len(each) == 1 else 1) for each in rest[:2])
    return Convolution(
        x=x,
        w=w,
        y=y,
        stride=stride,
        padding=padding,
        transposed=rest[3],
        channels_last=last,
        bias=bias,
    )


def blocked(tensor: torch.Tensor, block: int, axes: tuple[int, ...] = (1,)) -> int:
    """Bytes with the numbers of channels made multiples of ``block``.

    Args:
        tensor: an image ``[N, C, H, W]`` or a weight.
        block: channels that lie beside each other.
        axes: of the channels.
    """
    size = tensor.nbytes
    for axis in axes:
        count = tensor.shape[axis]
        size = size // count * (-(-count // block) * block) if count else 0
    return size


def _lies_channels_last(tensor: torch.Tensor) -> bool:
    if tensor.is_contiguous() or tensor.dim() not in _CHANNELS_LAST:
        return False
    return tensor.is_contiguous(memory_format=_CHANNELS_LAST[tensor.dim()])

"""Changes of pictures of PIL, and of the tensors that become of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image


class Compose:
    """One change after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]):
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        """Make them all."""
        for each in self.transforms:
            image = each(image)
        return image


class ToTensor:
    """A picture becomes float32 from 0 to 1, [channels, height, width]."""

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Make the tensor."""
        array = np.array(image)
        array = array[..., None] if array.ndim == 2 else array
        return torch.from_numpy(array).permute(2, 0, 1).contiguous().float().div(255)


class Normalize:
    """Mean and deviation of each channel are taken out."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]):
        self.mean = torch.tensor(mean).view(-1, 1, 1)
        self.std = torch.tensor(std).view(-1, 1, 1)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor without them."""
        return (tensor - self.mean) / self.std


class Resize:
    """The shorter side of a picture gets a length."""

    def __init__(self, size: int):
        self.size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the picture in that size."""
        scale = self.size / min(image.size)
        width, height = (round(scale * each) for each in image.size)
        return image.resize((width, height), Image.Resampling.BILINEAR)


class CenterCrop:
    """The square in the middle of a picture; what it has not is black."""

    def __init__(self, size: int):
        self.size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the square."""
        left, top = (round((each - self.size) / 2) for each in image.size)
        return image.crop((left, top, left + self.size, top + self.size))


class Lambda:
    """Any function."""

    def __init__(self, function: Callable[[Any], Any]):
        self.function = function

    def __call__(self, value: Any) -> Any:
        """Call it."""
        return self.function(value)

"""MNIST transform of SambaNova's starter programs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_MEAN, _DEVIATION = 0.1307, 0.3081


class DigitTransform:
    """Convert a 28 x 28 byte image to a normalised float32 tensor ``[1, H, W]``.

    Takes PIL images, arrays and tensors, so it can be a data set's ``transform``.

    Args:
        size: pixels of a side after padding with black, or None to leave the image as it is.
        dtype: type that values are rounded to before they become float32.
    """

    def __init__(self, size: int | None = None, dtype: torch.dtype = torch.float32):
        self.size, self.dtype = size, dtype

    def __call__(self, image: Any) -> torch.Tensor:
        """Convert an image to a normalised tensor."""
        pixels = torch.as_tensor(np.array(image))
        values = pixels.float() / 255 if pixels.dtype is torch.uint8 else pixels.float()
        values = values.reshape(1, *values.shape[-2:])
        if self.size is not None:
            border = self.size - values.shape[-1]
            before = border // 2
            values = torch.nn.functional.pad(values, (before, border - before) * 2)
        return ((values - _MEAN) / _DEVIATION).to(self.dtype).float()


def dataset_transform(args: Any) -> DigitTransform:
    """Return the image transform for a starter program's options.

    Args:
        args: options as an object or a dictionary; ``image_size`` and ``bf16`` are read if there.
    """
    values = dict(args) if isinstance(args, Mapping) else vars(args)
    dtype = torch.bfloat16 if values.get("bf16") else torch.float32
    return DigitTransform(values.get("image_size"), dtype)

"""Batches of random numbers, for measuring speed without files.

The numbers are those of the original's synthetic data: images uniform in [0, 1), labels uniform in
{0, 1, 2}. Unlike there, nothing is held in memory, and each event is made from the seed and its
own number: batches do not overlap, and an event is the same whenever it comes.
"""

from collections.abc import Sequence

import numpy as np
import torch

from cosmictagger.data.layout import PLANES
from cosmictagger.data.loader import Batch, BatchStream
from cosmictagger.data.order import Order


class SyntheticLoader(BatchStream):
    """Endless random images with the interface of ``EventLoader``.

    Args:
        batch_size: events of one batch of this instance.
        downsample: exponent k, as for real data: size divided by 2^k.
        size: (H, W) before downsampling.
        events: declared number of events, which sets the length of an epoch.
        seed: of the random numbers.
        shard: (index, count) of this instance.
        prefetch: how many batches are prepared ahead.
        img_transform: give ln(1 + x) of the images.
    """

    def __init__(
        self,
        batch_size: int = 1,
        downsample: int = 0,
        size: tuple[int, int] = (1280, 2048),
        events: int = 1_000_000,
        seed: int = 0,
        shard: tuple[int, int] = (0, 1),
        prefetch: int = 2,
        img_transform: bool = False,
    ) -> None:
        self.img_transform = img_transform
        order = Order(events, batch_size, False, seed, shard, drop_last=True)
        super().__init__(order, size, downsample, prefetch)

    def load(self, entries: Sequence[int]) -> Batch:
        """Draw the given events."""
        shape = (len(entries), PLANES, *self.image_size)
        image, label = np.empty(shape, np.float32), np.empty(shape, np.int64)
        for row, entry in enumerate(entries):
            source = np.random.default_rng([self.order.seed, entry])
            source.random(dtype=np.float32, out=image[row])
            label[row] = source.integers(0, 3, shape[1:], np.uint8)
        if self.img_transform:
            np.log1p(image, out=image)
        ids = np.zeros((len(entries), 3), np.int64)
        ids[:, 2] = entries
        return Batch(torch.from_numpy(image), torch.from_numpy(label), list(entries), ids)

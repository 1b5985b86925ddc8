"""Batches for the introduction model, and pictures in memory for a loader."""

from __future__ import annotations

import torch

NUM_IMAGES = 6_000


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images float32 [size, 1, 28, 28] and labels int64 [size], always the same."""
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(size, 1, 28, 28, generator=generator),
        torch.randint(0, 10, (size,), generator=generator),
    )


class Images(torch.utils.data.Dataset):
    """Images in memory, as in the introduction: one fetch per image."""

    def __init__(self):
        generator = torch.Generator().manual_seed(2)
        self.images = torch.randn(NUM_IMAGES, 1, 28, 28, generator=generator)
        self.labels = torch.randint(0, 10, (NUM_IMAGES,), generator=generator)

    def __len__(self) -> int:
        return NUM_IMAGES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]

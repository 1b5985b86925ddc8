"""Data sets with the shapes of the published ones, made up from a seed; and folders of pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset

Transform = Callable[[Any], Any] | None

_CLASSES = 10


class MNIST(Dataset[tuple[Any, int]]):
    """Ten classes of blurred grey patterns, 28 x 28.

    Attributes:
        data: uint8, [images, 28, 28].
        targets: int64, [images].
    """

    #: 20 batches of 64 and a shorter one; three of 100.
    SIZES = {True: 1300, False: 300}

    def __init__(
        self,
        root: str,
        train: bool = True,
        transform: Transform = None,
        target_transform: Transform = None,
        download: bool = False,
    ):
        del root, download
        self.transform, self.target_transform = transform, target_transform
        count = self.SIZES[train]
        generator = torch.Generator().manual_seed(0)
        patterns = torch.rand(_CLASSES, 28, 28, generator=generator)
        generator.manual_seed(1 + train)
        self.targets = torch.arange(count)[torch.randperm(count, generator=generator)] % _CLASSES
        noise = torch.rand(count, 28, 28, generator=generator)
        mixed = 0.6 * patterns[self.targets] + 0.4 * noise
        self.data = (255 * mixed).to(torch.uint8)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = Image.fromarray(self.data[index].numpy())
        target = int(self.targets[index])
        changed = image if self.transform is None else self.transform(image)
        return changed, target if self.target_transform is None else self.target_transform(target)


class FakeData(Dataset[tuple[Any, int]]):
    """Pictures of random numbers, of any size; each is made when it is asked for."""

    def __init__(
        self,
        size: int = 1000,
        image_size: tuple[int, int, int] = (3, 224, 224),
        num_classes: int = 10,
        transform: Transform = None,
        target_transform: Transform = None,
        random_offset: int = 0,
    ):
        self.size, self.image_size, self.num_classes = size, image_size, num_classes
        self.transform, self.target_transform = transform, target_transform
        self.random_offset = random_offset

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Any, int]:
        generator = torch.Generator().manual_seed(index + self.random_offset)
        values = torch.rand(self.image_size, generator=generator)
        target = int(torch.randint(self.num_classes, (1,), generator=generator))
        array = (255 * values).to(torch.uint8).permute(1, 2, 0).numpy()
        image: Any = Image.fromarray(array)
        changed = image if self.transform is None else self.transform(image)
        return changed, target if self.target_transform is None else self.target_transform(target)


class ImageFolder(Dataset[tuple[Any, int]]):
    """Pictures in folders, one for each class."""

    def __init__(self, root: str, transform: Transform = None):
        self.classes = sorted(each.name for each in Path(root).iterdir() if each.is_dir())
        self.transform = transform
        self.samples = [
            (path, number)
            for number, name in enumerate(self.classes)
            for path in sorted((Path(root) / name).glob("*.png"))
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, target = self.samples[index]
        image = Image.open(path).convert("RGB")
        return (image if self.transform is None else self.transform(image)), target

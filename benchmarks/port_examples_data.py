"""Pictures and texts that the examples of PyTorch read, made up in the present folder."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from PIL import Image


def prepare() -> None:
    """Make them, where the examples look or their arguments say."""
    for part, count in (("train", 42), ("test", 4)):
        _pictures(Path("dataset/BSDS300/images") / part, count, (480, 320))
    _pictures(Path("pictures/any"), 42, (80, 64))
    _pictures(Path("style"), 1, (64, 64))
    Path("models").mkdir()
    _texts(Path("text"))


def _pictures(folder: Path, count: int, size: tuple[int, int]) -> None:
    """Blurred colours, each picture of its own."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for number in range(count):
        array = generator.integers(0, 256, (12, 18, 3), dtype=np.uint8)
        Image.fromarray(array).resize(size).save(folder / f"{number}.png")


def _texts(folder: Path) -> None:
    """Sentences of words in any order."""
    generator = random.Random(0)
    words = [f"word{number}" for number in range(120)]
    folder.mkdir()
    for part, lines in (("train", 700), ("valid", 60), ("test", 60)):
        text = "\n".join(" ".join(generator.choices(words, k=12)) for _ in range(lines))
        (folder / f"{part}.txt").write_text(text)

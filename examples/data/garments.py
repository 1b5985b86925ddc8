"""Ten kinds of garment drawn by the program: a stand-in for Fashion-MNIST that needs no download.

In: how many pictures, and a seed. Out: a dataset like Fashion-MNIST's, the same on every machine,
kept as `.npy` files so that it is drawn once. `silhouettes` knows the garments; this file turns
them in the plane, dresses them in cloth, adds light, occlusion and noise, and stores the result.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from data.in_memory import InMemoryImages
from data.shapes import Draw, Field, wave
from data.silhouettes import GARMENTS

SIDE = 28  # pixels
NUM_TRAIN, NUM_TEST = 60_000, 10_000
VERSION = 1  # raise it with every change of the pictures: it is part of the files' names

_BLOCK = 100  # pictures of one class drawn at once; fits a processor's second-level cache


class Garments(InMemoryImages):
    """The drawn training or test set, with every class equally often."""

    @classmethod
    def load(
        cls, root: str | Path, *, train: bool, count: int | None = None, seed: int = 0
    ) -> "Garments":
        """Read the set from `root`, or draw it and keep it there.

        Args:
            root: the data directory.
            train: the training set, or the test set: other pictures from the same distribution.
            count: how many rows; 60,000 and 10,000 by default.
            seed: the pictures are a function of it.
        """
        count = count if count is not None else (NUM_TRAIN if train else NUM_TEST)
        split = "train" if train else "test"
        stem = f"{split}-{count}-seed{seed}-v{VERSION}"
        path = Path(root).expanduser() / "garments" / f"{stem}.npy"
        images = _cached(path, count)
        if images is None:
            images = draw_images(count, seed=seed, train=train)
            _store(path, images)
        labels = draw_labels(count, seed=seed, train=train)
        return cls(torch.from_numpy(images), torch.from_numpy(labels))


def draw_labels(count: int, *, seed: int, train: bool) -> NDArray[np.int64]:
    """Return labels 0 to 9 in random order, each equally often as far as `count` allows."""
    rng = _generator(seed, train)
    return rng.permutation(np.arange(count, dtype=np.int64) % len(GARMENTS))


def draw_images(count: int, *, seed: int, train: bool) -> NDArray[np.uint8]:
    """Draw the pictures that belong to `draw_labels`.

    Returns:
        uint8 [count, 28, 28]; the background is black but for noise.
    """
    labels = draw_labels(count, seed=seed, train=train)
    images = np.empty((count, SIDE, SIDE), dtype=np.uint8)
    work = [
        (label, block, rows)
        for label in range(len(GARMENTS))
        for block, rows in enumerate(_blocks(np.flatnonzero(labels == label)))
    ]
    # tqdm stays silent when the work is done before its delay has passed.
    for label, block, rows in tqdm(
        work, desc="drawing garments", delay=2, leave=False, disable=None
    ):
        rng = _generator(seed, train, label, block)
        images[rows] = _draw_block(label, rng)[: len(rows)]
    return images


def _blocks(rows: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    return [rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK)]


def _generator(seed: int, train: bool, *stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, int(train), *stream]))


def _draw_block(label: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw `_BLOCK` pictures of one class, uint8 [B, 28, 28]."""
    draw = Draw(rng, _BLOCK)
    x, y, pixels_per_unit = _pose(draw)
    sheet = GARMENTS[label](x, y, draw)
    cover = np.clip(0.5 - sheet.distance * pixels_per_unit, 0.0, 1.0)
    # Cloth is darker where it turns away from the viewer, within two pixels of its outline.
    rim = 1.0 - draw(0.0, 0.4) * np.clip(1.0 + sheet.distance * pixels_per_unit / 2.0, 0.0, 1.0)
    light = draw(0.25, 0.95) * sheet.shade * rim * _cloth(x, y, draw)
    level = _occlude(cover * np.clip(light, 0.06, 1.0), draw) + _noise(draw)
    level = np.floor(np.clip(level, 0.0, 1.0) * 255.0 + 0.5)
    return level.astype(np.uint8).reshape(-1, SIDE, SIDE)


def _pose(draw: Draw) -> tuple[Field, Field, Field]:
    """Return pixel centres in each garment's own frame, and the frame's scale.

    Returns:
        x and y, [B, 784], and pixels per unit, [B, 1].
    """
    centres = (np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2) / (SIDE / 2)
    column = np.tile(centres, SIDE)[None] - draw(-0.08, 0.08)
    row = np.repeat(centres, SIDE)[None] - draw(-0.06, 0.06)
    # The tangent of half the angle gives sine and cosine by exact arithmetic.
    half = draw(-0.06, 0.06)
    cosine, sine = (1.0 - half * half) / (1.0 + half * half), 2.0 * half / (1.0 + half * half)
    scale, stretch, shear = draw(0.88, 1.04), draw(0.94, 1.06), draw(-0.08, 0.08)
    x = (cosine * column + sine * row) / (scale * stretch)
    y = (cosine * row - sine * column) / scale
    return x + shear * y, y, scale * (SIDE / 2)


def _cloth(x: Field, y: Field, draw: Draw) -> Field:
    """Brightness of the cloth: a gradient, folds, and stripes or checks on some pieces."""
    gradient = 1.0 + draw(-0.2, 0.2) * x + draw(-0.2, 0.2) * y
    folds = 1.0 + draw(0.0, 0.5) * (_clouds(draw) - 0.5)
    across = np.where(draw.chance(0.22), draw(0.1, 0.6), 0.0)
    down = np.where(draw.chance(0.15), draw(0.1, 0.5), 0.0)
    stripes = 1.0 - across * wave(y * draw(1.5, 4.0) + draw(0.0, 1.0))
    stripes = stripes * (1.0 - down * wave(x * draw(1.5, 4.0) + draw(0.0, 1.0)))
    grain = np.where(draw.chance(0.3), draw(0.05, 0.45), 0.05)
    speckle = 1.0 + grain * (draw.rng.random(x.shape, dtype=np.float32) - 0.5)
    return gradient * folds * stripes * speckle


def _clouds(draw: Draw, knots: int = 5) -> Field:
    """Smooth random brightness in 0..1, [B, 784]: a coarse grid, interpolated along both axes."""
    grid = draw.rng.random((draw.count, knots, knots), dtype=np.float32)
    position = np.linspace(0.0, knots - 1.0, SIDE, dtype=np.float32)
    low = np.minimum(position.astype(np.intp), knots - 2)
    part = position - low
    rows = grid[:, low] * (1.0 - part)[:, None] + grid[:, low + 1] * part[:, None]
    field = rows[:, :, low] * (1.0 - part) + rows[:, :, low + 1] * part
    return field.reshape(draw.count, -1)


def _occlude(level: Field, draw: Draw) -> Field:
    """Cover a strip of some pictures, as a hanger, a hand or a label would."""
    centres = (np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2) / (SIDE / 2)
    column, row = np.tile(centres, SIDE)[None], np.repeat(centres, SIDE)[None]
    tilt = draw(-1.0, 1.0)
    upright = draw.chance(0.5)
    position = np.where(upright, column + tilt * row, row + tilt * column)
    strip = np.abs(position - draw(-0.7, 0.7)) < draw(0.05, 0.14)
    return np.where(strip & draw.chance(0.2), np.where(draw.chance(0.5), 0.0, 0.5), level)


def _noise(draw: Draw) -> Field:
    """Grain of the camera, [B, 784]: two uniform numbers added have a bell-like shape."""
    first = draw.rng.random((draw.count, SIDE * SIDE), dtype=np.float32)
    second = draw.rng.random((draw.count, SIDE * SIDE), dtype=np.float32)
    return draw(0.0, 0.14) * (first + second - 1.0)


def _cached(path: Path, count: int) -> NDArray[np.uint8] | None:
    """Return the stored pictures; None if there are none or they are not what they should be."""
    try:
        images = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    right = images.shape == (count, SIDE, SIDE) and images.dtype == np.uint8
    return images if right else None


def _store(path: Path, images: NDArray[np.uint8]) -> None:
    """Write beside the target and rename, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as stream:
        try:
            np.save(stream, images)
            os.replace(stream.name, path)
        except BaseException:  # an interrupt too must leave nothing behind
            os.unlink(stream.name)
            raise

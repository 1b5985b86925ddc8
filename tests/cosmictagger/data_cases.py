"""Small event files and the real sample, for the tests of the data."""

from pathlib import Path

import h5py
import numpy as np

from cosmictagger.data import larcv
from cosmictagger.data.larcv import IMAGE, LABEL, Event, Plane
from helpers.cosmic_small import write_events

SIZE = (32, 64)


def random_event(number: int, size: tuple[int, int] = SIZE, filled: float = 0.1) -> Event:
    rng = np.random.default_rng([number, 5])
    image, label = [], []
    for _ in range(larcv.PLANES):
        ids = np.flatnonzero(rng.random(size[0] * size[1]) < filled).astype(np.uint64)
        image.append(Plane(ids, (5 + rng.exponential(40, len(ids))).astype(np.float32)))
        label.append(Plane(ids, rng.integers(0, 3, len(ids)).astype(np.float32)))
    return Event({IMAGE: image, LABEL: label}, (1, 2, number))


def write_random(path: Path, events: int, first: int = 0, size: tuple[int, int] = SIZE) -> Path:
    write_events(path, (random_event(first + n, size) for n in range(events)), size)
    return path


def change(path: Path, table: str, row: int, field: str, value: object) -> None:
    """Damages one entry of a table."""
    with h5py.File(path, "r+") as file:
        rows = file[table][()]
        rows[field][row] = value
        file[table][...] = rows

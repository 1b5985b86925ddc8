"""Small events, a small network, and what runs of the application left, for tests of it."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

from cosmictagger.data.larcv import IMAGE, LABEL, Event, Plane, event_writer
from cosmictagger.data.loader import Batch

SIZE = (64, 128)

# A network of 555 parameters with every kind of layer: tracing takes longer than its steps.
TINY = (
    "network.n_initial_filters=2",
    "network.depth=1",
    "network.blocks_per_layer=0",  # the deepest level has one
    "network.bottleneck_deepest=4",
)


class PlaneNet(nn.Module):
    """Two convolutions with statistics between them, for each plane: traced in a moment."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.LeakyReLU(), nn.Conv2d(4, 3, 1)
        )

    def forward(self, image):
        return tuple(self.layers(image[:, plane : plane + 1]) for plane in range(3))


def batch_of(rows: int, seed: int = 0, size: tuple[int, int] = (8, 16)) -> Batch:
    """Random images and labels."""
    random = torch.Generator().manual_seed(seed)
    image = 5 * torch.rand(rows, 3, *size, generator=random)
    label = torch.randint(0, 3, (rows, 3, *size), generator=random)
    ids = np.stack([np.ones(rows), np.zeros(rows), np.arange(rows)], axis=1).astype(np.int64)
    return Batch(image, label, list(range(rows)), ids)


def event(number: int, size: tuple[int, int] = SIZE) -> Event:
    """A cosmic line from edge to edge, a short bright neutrino line, and noise."""
    random = np.random.default_rng(number)
    images, labels = [], []
    for _ in range(3):
        image, label = np.zeros(size, np.float32), np.zeros(size, np.float32)
        noise = random.integers(0, size[0] * size[1], 40)
        image.reshape(-1)[noise] = 5 + random.random(40)
        columns = np.arange(size[1])
        rows = np.linspace(*random.integers(0, size[0], 2), size[1]).astype(int)
        image[rows, columns], label[rows, columns] = 20 + 5 * random.random(size[1]), 1
        row, column = random.integers(0, size[0] - 12), random.integers(0, size[1] - 12)
        steps = np.arange(12)
        image[row + steps, column + steps], label[row + steps, column + steps] = 60, 2
        # Stored ids run along columns: id = x * rows + y.
        ids = np.flatnonzero(image.T.reshape(-1)).astype(np.uint64)
        images.append(Plane(ids, image.T.reshape(-1)[ids]))
        labels.append(Plane(ids, label.T.reshape(-1)[ids]))
    return Event({"sbndwire": images, "sbnd_cosmicseg": labels}, (1, 0, number))


def write_events(path, events, size=SIZE, producers=(IMAGE, LABEL), particles=False):
    """Write a whole file of events."""
    with event_writer(path, size, producers, particles) as writer:
        for each in events:
            writer.write(each)


def given(events: Path, name: str = "x") -> list[str]:
    """The command line of a small run on the files of a folder."""
    return [
        f"run.id={name}",
        "data=real",
        f"data.data_directory={events}",
        "data.file=train.h5",
        "data.aux_file=aux.h5",
        "data.downsample=1",
        "data.seed=7",
        "framework.seed=11",
        "run.compute_mode=CPU",
        "run.saver=False",
        *TINY,
    ]


def record(folder: Path) -> dict:
    """The run record of an output folder."""
    return json.loads((folder / "run.json").read_text())


def column(folder: Path, name: str, saver: str = "train") -> list[str]:
    """A column of a CSV file of an output folder."""
    rows = [line.split(",") for line in (folder / f"{saver}_metrics.csv").read_text().splitlines()]
    return [row[rows[0].index(name)] for row in rows[1:]]

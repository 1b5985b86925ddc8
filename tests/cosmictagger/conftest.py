"""Small events, a small network, and runs of the application inside the test's process."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cosmictagger.cli import main
from cosmictagger.data.writer import Event, Plane, write_events

SIZE = (64, 128)

# A network of a few hundred parameters that has every kind of layer.
TINY = (
    "network.n_initial_filters=2",
    "network.depth=2",
    "network.bottleneck_deepest=4",
)


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


@pytest.fixture(autouse=True)
def _quiet_and_interpreted(monkeypatch):
    """No compiler, one thread, and no seeds or rank left over from another test's environment."""
    monkeypatch.setenv("ABELE_TARGET", "reference")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def events_folder(tmp_path_factory):
    """A folder with train.h5 (7 events) and aux.h5 (3) of 64 x 128 pixels."""
    folder = tmp_path_factory.mktemp("events")
    write_events(folder / "train.h5", map(event, range(7)), SIZE)
    write_events(folder / "aux.h5", map(event, range(100, 103)), SIZE)
    return folder


@pytest.fixture
def run(events_folder, tmp_path, monkeypatch):
    """Runs a command line on the small events; gives (exit status, output folder)."""
    monkeypatch.chdir(tmp_path)

    def launched(*overrides: str, name: str = "x", folder: str | None = None) -> tuple[int, Path]:
        output = tmp_path / (folder or name)
        arguments = [
            f"run.id={name}",
            f"output_dir={output}",
            "data=real",
            f"data.data_directory={events_folder}",
            "data.file=train.h5",
            "data.aux_file=aux.h5",
            "data.downsample=1",
            "data.seed=7",
            "framework.seed=11",
            "run.compute_mode=CPU",
            "run.saver=False",
            *TINY,
        ]
        given = {override.split("=")[0].lstrip("+") for override in overrides}
        kept = [a for a in arguments if a.split("=")[0] not in given]
        # A group has to be chosen before its keys are set; Hydra does not mind the order.
        return main([*kept, *overrides]), output

    return launched


def record(folder: Path) -> dict:
    """The run record of an output folder."""
    return json.loads((folder / "run.json").read_text())

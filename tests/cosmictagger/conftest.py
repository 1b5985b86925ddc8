"""Runs of the application inside the test's process, on small events."""

import re
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from cosmictagger import launch
from cosmictagger.cli import main
from cosmictagger.results import plots
from helpers.cosmic_small import SIZE, PlaneNet, event, given, write_events


@pytest.fixture
def plane_net(monkeypatch):
    """Runs train a PlaneNet, whatever network is configured."""
    monkeypatch.setattr(launch.models, "build", lambda network, image_size: PlaneNet())


@pytest.fixture
def real_pictures():
    """Figures become the PNG files that users get."""


@pytest.fixture(autouse=True)
def _quick_files_of_figures(request, monkeypatch):
    """Figures are made, and their files have few bytes: else they take half of the time of runs."""
    if "real_pictures" not in request.fixturenames:
        monkeypatch.setattr(Figure, "savefig", lambda self, file, **_: file.write(b"\x89PNG"))


@pytest.fixture
def quick_pictures(monkeypatch):
    """Pictures of events are files with the pixels of the event; drawing has its own tests."""

    def save(event, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        seen = [event.plane(plane) for plane in range(3)]
        path.write_text(repr((event.event_id, event.metrics, seen)))
        return path

    monkeypatch.setattr(plots, "save_display", save)


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
        arguments = [f"output_dir={output}", *given(events_folder, name)]
        changed = {override.split("=")[0].lstrip("+") for override in overrides}
        if "data" in changed:  # another group, without files
            changed |= {a.split("=")[0] for a in arguments if re.match("data.*(file|directory)", a)}
        kept = [a for a in arguments if a.split("=")[0] not in changed]
        commands = [each for each in overrides if each == "compile"]
        return main([*commands, *kept, *(o for o in overrides if o != "compile")]), output

    return launched

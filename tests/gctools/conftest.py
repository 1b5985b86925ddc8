import pytest

from gctools import _devices
from gctools.system import System
from helpers.machines import Machine, Nvml


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Two sockets of two cores with two threads each, all of which this process may use."""
    made = Machine(tmp_path)
    made.add_sockets()
    monkeypatch.setattr("gctools._devices._allowed", lambda: frozenset(range(8)))
    monkeypatch.setattr(_devices, "partition", lambda: "node7")
    monkeypatch.setattr("gctools.monitor.partition", lambda: "node7")
    monkeypatch.setattr("gctools.inventory.partition", lambda: "node7")
    monkeypatch.setattr("gctools.info.partition", lambda: "node7")
    return made


@pytest.fixture
def at(monkeypatch):
    """Makes the commands look at a machine, with a driver if one is given."""

    def place(machine, nvml=None):
        monkeypatch.setattr(System, "here", lambda: machine.system(nvml))
        monkeypatch.delenv("COLUMNS", raising=False)

    return place


@pytest.fixture
def nvml():
    return Nvml()

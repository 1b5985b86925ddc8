"""A run tells the tools that it holds a device, and never fails because it cannot."""

import json
import logging
import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch

import poptorch
from abele.runtime import device_registry
from abele.runtime.device_registry import Attachment
from gctools._devices import list_devices
from gctools._processes import list_holds
from gctools.system import System
from helpers.warm_python import python

SOURCE = Path(__file__).parents[2] / "src"
CPU = torch.device("cpu")


class Owner:
    """Anything that can be referred to weakly."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(device_registry, "_entries", {})
    monkeypatch.setattr(device_registry, "_known", {})
    monkeypatch.setenv(device_registry.ENVIRONMENT, str(tmp_path / "held"))
    return tmp_path / "held"


def holds():
    """What is held as the chosen folder tells; this process may hold more from other tests."""
    system = System(registries=[device_registry.folder()])
    return list_holds(system, list_devices(system))


def test_the_tools_read_what_a_run_writes(folder):
    owner = Owner()
    attachment = Attachment(owner, "reference", CPU)
    assert attachment.problem is None
    (hold,) = holds()
    assert (hold.pid, hold.target) == (os.getpid(), "reference")
    assert hold.seconds < 60
    assert "python" in hold.command
    assert hold.devices
    attachment.end()
    attachment.end()
    assert holds() == []
    assert list(folder.iterdir()) == []


def test_the_file_goes_with_the_last_owner(folder):
    first, second = Owner(), Owner()
    Attachment(first, "cpu", CPU)
    Attachment(second, "reference", CPU)
    assert {hold.target for hold in holds()} == {"cpu", "reference"}
    del first
    assert {hold.target for hold in holds()} == {"reference"}
    del second
    assert list(folder.iterdir()) == []


class Regression(torch.nn.Linear):
    def forward(self, x, y):
        return torch.nn.functional.mse_loss(super().forward(x), y)


def test_a_wrapped_model_is_listed_while_it_holds_the_device(folder, monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    model = Regression(2, 1)
    options = poptorch.Options().showCompilationProgressBar(False)
    options.connectionType(poptorch.ConnectionType.OnDemand)
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    training.compile(torch.ones(1, 2), torch.ones(1, 1))
    assert holds() == []
    training(torch.ones(1, 2), torch.ones(1, 1))
    assert training.isAttachedToDevice()
    assert [hold.target for hold in holds()] == ["reference"]
    training.detachFromDevice()
    assert holds() == []
    training.attachToDevice()
    assert len(holds()) == 1
    training.destroy()
    assert holds() == []


def test_a_folder_that_cannot_be_made_is_said_and_the_run_goes_on(folder, monkeypatch, caplog):
    folder.write_text("a file in its place")
    monkeypatch.setenv("ABELE_TARGET", "reference")
    poptorch_logger = logging.getLogger("poptorch::python")
    monkeypatch.setattr(poptorch_logger, "propagate", True)
    model = torch.nn.Linear(2, 1)
    options = poptorch.Options().showCompilationProgressBar(False)
    with caplog.at_level(logging.DEBUG, "poptorch::python"):
        inference = poptorch.inferenceModel(model, options)
        assert inference(torch.ones(1, 2)).shape == (1, 1)
    assert "Other processes cannot see that this one holds a device" in caplog.text
    assert "held" in caplog.text
    inference.destroy()


def test_what_killed_processes_have_left_is_deleted(folder):
    Attachment(owner := Owner(), "cpu", CPU)
    (mine,) = folder.iterdir()
    record = json.loads(mine.read_text())
    left = {
        "99999999-5.json": record,
        "99999998-5.json": record | {"boot": "another"},
        "99999997-5.part": {},
        "notes.json": record,
    }
    for name, content in left.items():
        (folder / name).write_text(json.dumps(content))
    os.utime(folder / "99999997-5.part", (0, 0))
    os.mkfifo(folder / "99999996-5.json")
    device_registry._known.clear()  # as another process
    other = Attachment(owner, "cpu", CPU)
    kept = {"99999998-5.json", "99999996-5.json", "notes.json", mine.name}
    assert {path.name for path in folder.iterdir()} == kept
    other.end()


def test_a_folder_that_somebody_else_made_first_is_not_used(folder, monkeypatch):
    folder.mkdir()
    user = os.geteuid()
    monkeypatch.setattr(device_registry.os, "geteuid", lambda: user + 1)
    assert "not a folder of this user's own" in Attachment(Owner(), "cpu", CPU).problem


CHILD = """
import os, sys, torch
from abele.runtime.device_registry import Attachment
class Owner: pass
owner = Owner()
Attachment(owner, "cpu", torch.device("cpu"))
child = os.fork()
if child == 0:
    sys.exit()  # a fork that exits must not take its parent's file along
os.waitpid(child, 0)
print(os.getpid(), flush=True)
sys.stdin.readline()
"""


def test_killed_processes_leave_nothing_and_ended_ones_clear_up(folder):
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    children = [
        subprocess.Popen(
            [python(), "-W", "ignore", "-c", CHILD],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        pids = [int(child.stdout.readline()) for child in children]
        assert {hold.pid for hold in holds()} == set(pids)
        os.kill(pids[0], signal.SIGKILL)
        children[0].wait(60)
        assert len(list(folder.iterdir())) == 2
        assert [hold.pid for hold in holds()] == [pids[1]]
        (path,) = folder.iterdir()
        record = json.loads(path.read_text())
        assert record["pid"] == pids[1]
        children[1].communicate("\n", timeout=60)
        assert list(folder.iterdir()) == []
    finally:
        for child in children:
            child.kill()
            child.communicate()

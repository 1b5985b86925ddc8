"""Real runs of poprun: pipelines, checkpoints and device tools."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from helpers import launching
from helpers import pipelined_instances as program
from helpers.warm_python import python

PROGRAM = Path(program.__file__)
INSTANCES, STEPS = 2, 7


@pytest.fixture(scope="module")
def server():
    started = launching.Server()
    yield started
    started.close()


@pytest.fixture
def poprun(server, tmp_path, monkeypatch):
    """Starts a program with four replicas in two instances."""
    monkeypatch.setattr(launching, "PATIENCE", 200)

    def start(*words, **environment):
        return server.start(
            tmp_path, f"--num-instances={INSTANCES}", f"--num-replicas={program.REPLICAS}", *words,
            PYTHONPATH=os.pathsep.join(filter(None, sys.path)),
            **{"ABELE_TARGET": "reference", "ABELE_PIPELINE": "workers"} | environment,
        )  # fmt: skip

    yield start
    server.tidy()


def in_one_process(steps):
    """The same training in one process with all replicas, as one program."""
    model = program.Model()
    options = program.poptorch.Options().replicationFactor(program.REPLICAS)
    training, _ = program.trainer(options, model)
    for step in range(steps):
        training(*program.batch(step, 0, program.REPLICAS))
    return model.state_dict()


def test_pipelines_in_several_instances_go_on_from_checkpoints(poprun, tmp_path, monkeypatch):
    folder = tmp_path / "attached"
    words = [python(), PROGRAM, tmp_path, STEPS]
    run = poprun("--max-restarts", 1, *words, ABELE_RUNTIME_DIR=str(folder))
    assert run.wait() == 0, run.err
    printed = [dict(line.split(" ", 1) for line in run.lines(rank)) for rank in range(INSTANCES)]
    for result in printed:
        assert (result["begins"], result["stages"]) == (f"at {program.KILLED_AT + 1}", "2")
    # gc-monitor saw those two, and not those of the first attempt.
    pids = [line.split()[1] for rank in (0, 1) for line in run.lines(rank) if "pid" in line]
    assert len(set(pids)) == 2 * INSTANCES
    assert {*printed[0]["shown"].split()} & {*pids} == {result["pid"] for result in printed}
    assert not list(folder.glob("*"))
    monkeypatch.setenv("ABELE_PIPELINE", "sequential")
    together = torch.load(tmp_path / "end.pt", weights_only=True)
    for name, value in in_one_process(STEPS).items():
        assert (together[name] - value).abs().max() <= 1e-6 * value.abs().max()


def test_ctrl_c_in_the_middle_of_training_leaves_nothing(poprun, tmp_path):
    before = set(os.listdir("/dev/shm"))
    run = poprun(python(), PROGRAM, tmp_path, ABELE_RUNTIME_DIR=str(tmp_path / "attached"))
    kept = tmp_path / "kept"
    run.until(lambda: len(list(kept.glob("step-*.ckpt"))) > 1, "some checkpoints")
    run.signal(signal.SIGINT)
    assert run.wait() == 128 + signal.SIGINT  # and no process is left
    assert "Ended by SIGINT" in run.err
    assert set(os.listdir("/dev/shm")) <= before
    assert [path.name for path in kept.iterdir() if path.suffix != ".ckpt"] == []
    for path in kept.iterdir():
        torch.load(path, weights_only=True)

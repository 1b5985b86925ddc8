"""What instances of one run do together, and that a single one pays nothing for it."""

import math
import subprocess
from pathlib import Path

import pytest
import torch

from cosmictagger import instances
from cosmictagger.config import checks
from cosmictagger.config.composing import composed
from cosmictagger.errors import ConfigError, DataError
from helpers.instances import results, started
from helpers.warm_python import python

PROGRAM = Path(__file__).parents[1] / "helpers" / "cosmic_instances.py"


@pytest.mark.parametrize("maker", ["of_popdist", pytest.param("of_torch", marks=pytest.mark.long)])
def test_instances_do_together(maker: str):
    with started(PROGRAM, [maker], 2) as running:
        first, last = results(running)
    assert first.status == 0, first.err
    assert last.status == 3, last.err
    assert "the disk is full" in first.out


def test_one_instance_is_free():
    group = instances.alone()
    assert (group.shard, group.is_first) == ((0, 1), True)
    value = object()
    assert group.gather("a value", value) == [value]
    assert group.from_first("a value", value) is value
    assert group.total([1, 2.5]) == [1, 2.5]
    rows = torch.ones(2)
    assert group.rows(rows) is rows
    assert math.isnan(group.mean({"x": math.nan}, 3)["x"])
    group.agree("facts", {"a": 1})
    with pytest.raises(DataError, match=r"^gone$"), group.together("reading"):
        raise DataError("gone")
    group.fail("nobody is told")


def test_one_instance_does_not_load_what_connects():
    program = (
        "import sys; from cosmictagger import instances; group = instances.alone();"
        "group.gather('x', 1); group.mean({'a': 1.0}, 2);"
        "print('popdist' in sys.modules, 'poptorch' in sys.modules)"
    )
    ended = subprocess.run([python(), "-c", program], capture_output=True, text=True)
    assert ended.stdout.split() == ["False", "False"], ended.stderr


LAUNCHERS = {
    "torchrun": {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1"},
    "mpirun": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"},
    "Intel MPI": {"PMI_RANK": "1", "PMI_SIZE": "3"},
    "Slurm": {
        "SLURM_PROCID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_NODELIST": "here",
    },
    "poprun": {
        "POPDIST_NUM_TOTAL_REPLICAS": "6",
        "POPDIST_NUM_LOCAL_REPLICAS": "2",
        "POPDIST_REPLICA_INDEX_OFFSET": "2",
    },
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_tells_the_number_of_processes(launcher, monkeypatch):
    monkeypatch.setattr("os.environ", dict(LAUNCHERS[launcher]))
    assert instances.processes() == 3


def test_without_a_launcher_there_is_one_process(monkeypatch):
    monkeypatch.setattr("os.environ", {})
    assert instances.processes() == 1


def test_a_launcher_that_contradicts_itself_is_named(monkeypatch):
    contradiction = {"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "3"}
    monkeypatch.setattr("os.environ", contradiction)
    with pytest.raises(
        ConfigError,
        match=r"How many processes there are is not known.*MPI says that this is rank 4 of 3",
    ):
        instances.processes()


def settled(monkeypatch, launcher: str, *overrides: str):
    monkeypatch.setattr("os.environ", dict(LAUNCHERS.get(launcher, {})))
    config = composed("config", ["run.id=x", *overrides])
    return config, checks.settle_processes(config)


CPU, IPU = "run.compute_mode=CPU", "run.compute_mode=IPU"


@pytest.mark.parametrize(
    ("launcher", "overrides", "said"),
    [
        ("torchrun", ["run.compute_mode=RDU"], "This is one of 3 processes, but RDU mode runs in"),
        ("", ["run.compute_mode=RDU", "run.distributed=True"], "True, but RDU mode runs in one"),
        ("Slurm", [CPU], "one of 3 processes, .* Add run.distributed=True"),
        ("Slurm", ["mode=iotest", IPU], "mode=iotest measures one. Start one process"),
        (
            "mpirun",
            [CPU, "run.distributed=True", "run.minibatch_size=4"],
            "minibatch_size=4 was asked for, which 3 processes cannot share.* a multiple of 3",
        ),
        ("", [CPU, "run.num_replicas=2"], "num_replicas=2 was asked for; only IPU mode"),
    ],
)
def test_what_processes_cannot_share_is_refused(monkeypatch, launcher, overrides, said):
    with pytest.raises(ConfigError, match=said):
        settled(monkeypatch, launcher, *overrides)


def test_a_minibatch_is_of_all_processes_with_files_and_of_each_otherwise(monkeypatch):
    shared = (CPU, "run.distributed=True", "run.minibatch_size=6")
    config, notes = settled(monkeypatch, "torchrun", *shared)
    assert (checks.minibatch(config, 3), notes) == (2, [])
    config, _ = settled(monkeypatch, "torchrun", *shared, "data=synthetic")
    assert checks.minibatch(config, 3) == 6
    config, _ = settled(monkeypatch, "poprun", IPU, "run.minibatch_size=4")
    assert checks.minibatch(config, 3) == 4


def test_poprun_decides_how_many_replicas_there_are(monkeypatch):
    config, notes = settled(monkeypatch, "poprun", IPU)
    assert (config.run.num_replicas, notes) == (2, [])
    config, notes = settled(monkeypatch, "poprun", IPU, "run.num_replicas=5")
    assert config.run.num_replicas == 2
    assert notes == ["run.num_replicas=5 has no effect: poprun gives each instance its replicas."]
    config, notes = settled(monkeypatch, "", IPU, "run.num_replicas=5")
    assert (config.run.num_replicas, notes) == (5, [])

"""Instances are killed at random moments; poprun restarts them, and nobody can tell afterwards."""

import contextlib
import os
import random
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from helpers import launching
from helpers.warm_python import python

PROGRAM = Path(launching.__file__).with_name("resumable.py")
PART = re.compile(r".*\.part|.*\.tmp|.*\.partial|\..*")
INSTANCES = 2


@pytest.fixture(scope="module")
def server():
    started = launching.Server()
    yield started
    started.close()


def at_start(attempt):
    """Whether an attempt is killed while its processes start or go on with what was saved."""
    return attempt % 3 == 1


class Running:
    """A run of the program, and what the test does to it."""

    def __init__(self, server, folder, epochs, restarts):
        (folder / "notes").mkdir(parents=True)
        self.folder, self.pids = folder, {}
        options = [f"--num-instances={INSTANCES}", f"--num-replicas={INSTANCES}"]
        self.run = server.start(
            folder,
            *options, "--max-restarts", restarts, python(), "-W", "ignore",
            PROGRAM, folder, epochs,
            ABELE_TARGET="reference", PYTHONPATH=os.pathsep.join(filter(None, sys.path)),
        )  # fmt: skip

    def noted(self, event, attempt):
        """The processes that came so far, once all of an attempt have."""
        paths = [self.folder / "notes" / f"{event}-{attempt}-{r}" for r in range(INSTANCES)]

        def there():
            ended = (self.folder / "end-0.pt").exists()  # asked first: what has come stays
            found = all(path.exists() for path in paths)
            assert found or not ended, "it ended before it could be killed"
            return found

        self.run.until(there, f"attempt {attempt} to be {event}")
        self.pids[attempt] = [int(path.read_text()) for path in paths]
        return self.pids[attempt]

    def kill(self, attempt, dice):
        """Kills one of an attempt's instances: while it starts, or while it trains and saves."""
        if at_start(attempt):
            victims, wait = self.noted("alive", attempt), dice.uniform(0, 4)
        else:
            victims, wait = self.noted("going", attempt), dice.uniform(0, 0.8)
        time.sleep(wait)
        os.kill(dice.choice(victims), signal.SIGKILL)

    def check(self, attempt):
        """Once this attempt trains, nothing is left of the one before but whole files."""
        self.noted("going", attempt)
        for pid in self.pids.get(attempt - 1, []):
            assert not Path(f"/proc/{pid}").exists()
        self.nothing_is_left(attempt)

    def nothing_is_left(self, attempts):
        folder = self.folder / "checkpoints"
        writing = {str(pid) for pid in self.pids.get(attempts, [])}
        parts = [p for p in os.listdir(folder) if PART.fullmatch(p)]
        assert [p for p in parts if not writing & set(re.findall(r"\d+", p))] == []
        ours = {str(pid) for pids in self.pids.values() for pid in pids} - writing
        assert [n for n in os.listdir("/dev/shm") if ours & set(re.findall(r"\d+", n))] == []
        for path in folder.glob("*.ckpt"):
            with contextlib.suppress(FileNotFoundError):  # the run goes on, and keeps two
                torch.load(path, weights_only=True)

    def end(self):
        """What the model and its optimizer are at the end, on every instance."""
        assert self.run.wait() == 0, self.run.err
        self.nothing_is_left(None)
        assert len(list((self.folder / "checkpoints").glob("*.ckpt"))) == 2
        return [
            torch.load(self.folder / f"end-{rank}.pt", weights_only=True)
            for rank in range(INSTANCES)
        ]


@pytest.mark.parametrize(
    ("kills", "epochs"), [(1, 12), pytest.param(10, 150, marks=pytest.mark.long)]
)
def test_weights_after_kills_are_those_of_an_undisturbed_run(
    server, tmp_path, monkeypatch, kills, epochs
):
    monkeypatch.setattr(launching, "PATIENCE", 300)
    seed = random.SystemRandom().randrange(10**6)
    print(f"moments follow from seed {seed}")
    dice = random.Random(seed)
    try:
        expected = Running(server, tmp_path / "undisturbed", epochs, 0).end()
        killed = Running(server, tmp_path / "killed", epochs, kills)
        for attempt in range(kills):
            killed.kill(attempt, dice)
            if attempt + 1 == kills or not at_start(attempt + 1):
                killed.check(attempt + 1)
        actual = killed.end()
    finally:
        server.tidy()
    names = [name for name in expected[0] if "norm.running" not in name]
    for mine, other in zip(actual, expected, strict=True):
        assert [name for name in other if not torch.equal(mine[name], other[name])] == []
    # Statistics of batches are each instance's own; they have to differ, or nothing was shared.
    assert all(torch.equal(actual[0][name], actual[1][name]) for name in names)
    assert not torch.equal(actual[0]["norm.running_mean"], actual[1]["norm.running_mean"])


def test_no_restart_begins_anew_where_all_checkpoints_are_damaged(server, tmp_path):
    folder = tmp_path / "run"
    Running(server, folder, 2, 0).end()
    before = {}
    for path in (folder / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:500])
        before[path.name] = path.read_bytes()
    shutil.rmtree(folder / "notes")
    again = Running(server, folder, 4, 2)
    assert again.run.wait() != 0
    assert "are damaged" in again.run.err
    assert {path.name: path.read_bytes() for path in (folder / "checkpoints").iterdir()} == before
    events = {path.name.rpartition("-")[0] for path in (folder / "notes").iterdir()}
    assert events == {"alive-0", "alive-1", "alive-2"}

"""Instances of CosmicTagger are killed; poprun restarts them, and the weights are the same bits."""

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from cosmictagger import checkpoints, cli
from helpers import launching
from helpers.cosmic_small import column, given, record
from helpers.warm_python import python

STEPS = 40


@pytest.fixture(scope="module")
def server():
    started = launching.Server()
    yield started
    started.close()


def start(server, events: Path, folder: Path, mode: str, restarts: int) -> launching.Run:
    folder.mkdir()
    kept = [a for a in given(events) if "compute_mode" not in a]
    arguments = [
        *kept, f"output_dir={folder / 'out'}", f"run.compute_mode={mode}",
        f"run.distributed={mode == 'CPU'}", f"run.iterations={STEPS}", "run.aux_iterations=3",
        f"run.minibatch_size={2 if mode == 'CPU' else 1}", "mode.checkpoint_iteration=1",
    ]  # fmt: skip
    return server.start(
        folder,
        "--num-instances", 2, "--num-replicas", 2 if mode == "CPU" else 4,
        "--max-restarts", restarts, python(), cli.__file__, *arguments,
        ABELE_TARGET="reference", PYTHONPATH=os.pathsep.join(filter(None, sys.path)),
    )  # fmt: skip


def instances(run: launching.Run, attempt: int) -> list[int]:
    """The processes of an attempt, without what poprun starts them with."""
    needle, result = f"TORCHELASTIC_RESTART_COUNT={attempt}\0".encode(), []
    for pid, command in run.processes().items():
        with contextlib.suppress(OSError):
            theirs = needle in Path(f"/proc/{pid}/environ").read_bytes()
            if theirs and cli.__file__ in command.split():
                result.append(pid)
    return result


def steps(run: launching.Run) -> list[str]:
    """Those in the table so far."""
    log = run.folder / "out" / "train_metrics.csv"
    return column(log.parent, "step") if log.exists() else []


def kill_one(run: launching.Run, attempt: int, dice: random.Random) -> None:
    """Kills an instance while it starts, or while it trains and saves, in turn."""
    run.until(lambda: len(instances(run, attempt)) == 2, f"attempt {attempt}")
    if attempt % 2:
        time.sleep(dice.uniform(0, 1.5))
    else:
        before = len(steps(run))
        run.until(lambda: len(steps(run)) > before, f"steps of attempt {attempt}")
        time.sleep(dice.uniform(0, 0.3))
    for pid in dice.sample(instances(run, attempt), 1):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def rows(folder: Path, saver: str) -> list[tuple[str, str]]:
    """Losses by step; those of a step that was made again are there twice, and the same."""
    pairs = list(zip(column(folder, "step", saver), column(folder, "loss", saver), strict=True))
    assert len(set(pairs)) == len(dict(pairs)), "a step that was made again has another loss"
    return pairs


@pytest.mark.long
@pytest.mark.parametrize("mode", ["IPU", "CPU"])
def test_a_run_that_is_killed_ends_with_the_bits_of_one_that_is_not(
    server, events_folder, tmp_path, monkeypatch, mode
):
    monkeypatch.setattr(launching, "PATIENCE", 300)
    calm = start(server, events_folder, tmp_path / "calm", mode, 0)
    assert calm.wait() == 0, calm.err
    dice, kills = random.Random(mode), 3
    run = start(server, events_folder, tmp_path / "killed", mode, kills)
    for attempt in range(kills):
        kill_one(run, attempt, dice)
    for step in range(STEPS):
        run.until(lambda at=step: str(at) in steps(run), f"step {step}")
    assert run.wait() == 0, run.err
    folders = tmp_path / "calm" / "out", tmp_path / "killed" / "out"
    calm_content, content = (checkpoints.load(checkpoints.locate(each)) for each in folders)
    assert content["global_step"] == STEPS
    assert content["loader"] == calm_content["loader"]
    assert content["aux_loader"] == calm_content["aux_loader"]
    assert record(folders[1])["weights_hash"] == record(folders[0])["weights_hash"]
    for kind, state in content["optimizer"].items():
        for name, values in state.items():
            of_calm = calm_content["optimizer"][kind][name]
            assert all(value.equal(of_calm[key]) for key, value in values.items())
    assert column(folders[1], "loss")[-1] == column(folders[0], "loss")[-1]
    losses = {s: dict(rows(folder, s)) for folder in folders for s in ("train", "test")}
    for saver in ("train", "test"):
        assert dict(rows(folders[0], saver)) == losses[saver]

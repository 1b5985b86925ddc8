"""What people and disks do to a run, through the command line: one sentence, and nothing lost."""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from abele.storage import atomic
from cosmictagger import checkpoints
from cosmictagger.cli import main
from cosmictagger.data import generator
from cosmictagger.data.larcv import Plane
from cosmictagger.modes import training
from helpers.cosmic_small import SIZE, column, event, record, write_events

EMPTY = Plane(np.zeros(0, np.uint64), np.zeros(0, np.float32))


@pytest.fixture(scope="module")
def bad(events_folder):
    """Files that are cut, empty or have one bad pixel, in the folder of the good ones."""
    whole = (events_folder / "train.h5").read_bytes()
    (events_folder / "cut.h5").write_bytes(whole[: len(whole) // 2])
    write_events(events_folder / "none.h5", [], SIZE)
    events = [event(number) for number in range(4)]
    events[1].planes["sbnd_cosmicseg"][2].values[3] = 7
    write_events(events_folder / "class.h5", events, SIZE)
    nothing = {"sbndwire": [EMPTY] * 3, "sbnd_cosmicseg": [EMPTY] * 3}
    events = [event(0)._replace(planes=nothing), event(1)]
    write_events(events_folder / "empty.h5", events, SIZE)
    return events_folder


def sentence(capsys) -> str:
    """The one line that a run says on standard error."""
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cosmictagger: ")
    return line


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("nowhere", "nowhere.h5 does not exist. Check .* data.file, or data.paths"),
        ("cut", "cut.h5 cannot be opened as an HDF5 file: .*truncated.* fetch it again"),
        ("none", "it has no events"),
        ("class", r"step \d: .*class.h5: event 1 of .* has label 7 .* 2 \(neutrino\)"),
    ],
)
def test_files(run, bad, capsys, name, match):
    status, out = run("run.iterations=3", f"data.file={name}.h5", "data.aux_file=")
    said = sentence(capsys)
    assert status == (2 if name == "nowhere" else 1)
    assert re.search(match, said)
    assert record(out)["ended"] == f"failed: {said.removeprefix('cosmictagger: ')}"
    log = (out / "process.log").read_text()
    assert said.removeprefix("cosmictagger: ") in log
    # What a command line names is looked at before anything is printed or built.
    assert ("-- CONFIG --" in log, "Network " in log) == (name == "class",) * 2


@pytest.mark.parametrize("mode", ["train", "inference"])
def test_events_without_a_pixel_are_events(run, bad, mode):
    random = ["mode.weights_location=random"] if mode == "inference" else []
    status, out = run(
        f"mode={mode}", *random, "data.file=empty.h5", "data.aux_file=", "run.iterations=2",
        "run.minibatch_size=1",
    )  # fmt: skip
    assert status == 0
    losses = column(out, "loss", "train" if mode == "train" else "ana")
    assert len(losses) == 2
    assert np.isfinite([float(loss) for loss in losses]).all()


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["data.image=wire"], "no sparse images of producer 'wire'; it has .'sbnd_.*', 'sbndwire'"),
        (["data.downsample=9"], "does not fit images of 64 x 128.* fit: 0 to 6"),
        (["network.depth=6"], "for images of 64 x 128 a data.downsample of 0"),
        (["mode.weights_location=random.ckpt"], "random.ckpt does not exist"),
    ],
)  # fmt: skip
def test_settings(run, capsys, overrides, match):
    assert run("run.iterations=1", *overrides)[0] == 2
    assert re.search(match, sentence(capsys))


def test_an_aux_file_that_is_missing_is_said_and_training_goes_on(run):
    status, out = run("run.iterations=2", "run.aux_iterations=1", "data.aux_file=nowhere.h5")
    assert status == 0
    assert record(out)["steps"] == 2
    assert not (out / "test_metrics.csv").exists()
    log = (out / "process.log").read_text()
    assert re.search("WARNING - There is no validation: .* there is no .*/nowhere.h5", log)


def test_validation_on_what_is_trained_on_is_said(run, events_folder, tmp_path):
    for each in ("train.h5", "aux.h5"):
        (tmp_path / each).symlink_to(events_folder / each)
    (tmp_path / "link.h5").symlink_to(events_folder / "train.h5")
    said = "Validation reads .*, the events that are trained on, .* data.aux_file=FILE"
    given = (f"data.data_directory={tmp_path}", "run.iterations=1")
    status, out = run(*given, "data.aux_file=link.h5")
    assert status == 0
    assert re.search(f"WARNING - {said}", (out / "process.log").read_text())
    _, other = run(*given, name="other")
    assert not re.search(said, (other / "process.log").read_text())


def test_a_folder_that_cannot_be_written(run, tmp_path, capsys):
    (tmp_path / "x" / "process.log").mkdir(parents=True)
    assert run("run.iterations=1")[0] == 2
    assert re.search("output_dir=.*/x cannot be made or written: .* another", sentence(capsys))


def test_a_disk_that_fills_up_between_checkpoints(run, monkeypatch, capsys):
    """The table of metrics cannot be written; neither can the record, and that is not the story."""
    add, write = training.Table.add, atomic.write_text

    def full(self, step, metrics):
        if step == 3:
            monkeypatch.setattr(atomic, "write_text", failing)
            raise OSError(28, "No space left on device")
        add(self, step, metrics)

    def failing(path, text):
        raise OSError(28, "No space left on device either")

    monkeypatch.setattr(training.Table, "add", full)
    status, out = run("run.iterations=9", "run.aux_iterations=0", "mode.checkpoint_iteration=2")
    assert status == 1
    wanted = "cosmictagger: A file cannot be read or written: [Errno 28] No space left on device"
    assert sentence(capsys) == wanted
    # The record is written over in its place, where there is no room for a second one.
    assert record(out)["ended"] == "failed: [Errno 28] No space left on device"
    monkeypatch.setattr(training.Table, "add", add)
    monkeypatch.setattr(atomic, "write_text", write)
    assert run("run.iterations=1", "run.aux_iterations=0")[0] == 0
    assert checkpoints.load(checkpoints.locate(out))["global_step"] == 3


@pytest.fixture
def small_files(monkeypatch):
    """A function that limits the size of files, from now until the end of the test."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # cut files would stay
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("name", "overrides", "size"),
    [
        ("train_metrics.csv", [], 8000),
        ("train", ["run.saver=True", "mode.logging_iteration=1000"], 8000),
        ("model-3.ckpt", ["mode.checkpoint_iteration=3"], 6000),
    ],
)
def test_a_file_without_room_is_named_and_nothing_else_is_printed(
    run, monkeypatch, small_files, capsys, name, overrides, size
):
    opened = training.Training.run

    def run_with_small_files(self):
        small_files(size)
        return opened(self)

    monkeypatch.setattr(training.Training, "run", run_with_small_files)
    status, out = run("run.iterations=300", "run.aux_iterations=0", *overrides)
    assert status == 1
    assert re.search(rf"{name} .* File too large|File too large: .*/{name}'", sentence(capsys))
    assert "File too large" in record(out)["ended"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate ..."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_memory_that_is_not_enough(run, monkeypatch, capsys, error):
    def step(self, batch, rate):
        raise error

    monkeypatch.setattr("cosmictagger.backends.plain.PlainBackend.train_step", step)
    assert run("run.iterations=1")[0] == 1
    assert re.search(r"Memory is not enough: .* memory\. Choose a smaller", sentence(capsys))


def test_an_error_that_nobody_thought_of_is_told_once_and_whole(run, monkeypatch):
    def broken(self, batch, rate):
        raise ZeroDivisionError("nobody thought of it")

    monkeypatch.setattr("cosmictagger.backends.plain.PlainBackend.train_step", broken)
    with pytest.raises(ZeroDivisionError) as caught:
        run("run.iterations=1", name="one")
    out = caught.traceback[1].frame.f_locals["output"]
    log = (out / "process.log").read_text()
    assert log.count("Traceback (most recent call last)") == 1
    assert record(out)["ended"] == "failed: ZeroDivisionError: nobody thought of it"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_events_are_made_leaves_nothing(tmp_path, monkeypatch, capsys, number):
    simulated = generator._simulated

    def watched(place, *others):
        if place == 1:
            os.kill(os.getpid(), number)
        return simulated(place, *others)

    monkeypatch.setattr(generator, "_simulated", watched)
    before = signal.getsignal(number)
    path = tmp_path / "made.h5"
    small = ["--rows", "32", "--columns", "32"]
    assert main(["generate", "--events", "3", "--output", str(path), *small]) == 128 + number
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"cosmictagger: stopped by {number.name}; nothing is half written."
    assert signal.getsignal(number) == before
    assert not list(tmp_path.iterdir())


HOLDER = """
import sys, time
from pathlib import Path
from abele.storage.files import exclusive_file
with exclusive_file(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_launch_of_a_run_is_refused_while_the_first_goes_on(run, tmp_path, capsys):
    status, out = run("run.iterations=1")
    assert status == 0
    before = (out / "process.log").read_bytes()
    command = [sys.executable, "-c", HOLDER, out / "process.log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        capsys.readouterr()
        for mode in ("train", "inference"):
            assert run("run.iterations=1", f"mode={mode}")[0] == 2
            who = f"run.id=x is running already: process {os.getpid()} writes to {out}."
            assert who in sentence(capsys)
        assert (out / "process.log").read_bytes() == before
        holder.kill()
    assert run("run.iterations=1")[0] == 0
    assert record(out)["steps"] == 2


WRITER = """
import sys, time, h5py
with h5py.File(sys.argv[1], "r+"):
    print("open", flush=True)
    time.sleep(600)
"""


def test_a_file_that_another_program_writes_is_not_damaged(run, bad, tmp_path, capsys):
    path = tmp_path / "train.h5"
    shutil.copyfile(bad / "train.h5", path)
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"open\n"
        assert run("run.iterations=1", f"data.data_directory={tmp_path}")[0] == 1
        said = sentence(capsys)
        writer.kill()
    assert "train.h5 is locked: another program has it open to write" in said

"""Damaged files, full disks, other programs: nothing is lost, and it is said what is wrong."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import poptorch
from helpers.checkpointed import Data, Killed, Model, Program
from popdist.checkpoint import Checkpointer, CheckpointError, CheckpointWarning


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder with the checkpoints of steps 3 and 4."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABELE_TARGET", "reference")
        program = Program(folder)
        with pytest.raises(Killed):
            program.run(4)
        program.close()
    assert sorted(os.listdir(folder)) == ["step-3.ckpt", "step-4.ckpt"]
    return folder


@pytest.fixture
def folder(stopped, tmp_path):
    return Path(shutil.copytree(stopped, tmp_path / "checkpoints"))


def resumed(folder, **settings):
    program = Program(folder, **settings)
    program.checkpointer.restore()
    return program


def test_the_newest_of_the_last_ones_is_taken(folder):
    checkpointer = resumed(folder).checkpointer
    assert (checkpointer.steps, checkpointer.epoch) == (4, 0)
    assert checkpointer.restore() is True
    assert Program(folder / "none").checkpointer.restore() is False


@pytest.mark.parametrize("damage", ["cut", "empty", "bits", "nonsense"])
def test_a_damaged_file_is_left_for_the_one_before(folder, damage):
    newest = folder / "step-4.ckpt"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 255
    results = {"cut": data[: len(data) // 2], "empty": b"", "bits": data, "nonsense": b"x" * 5000}
    newest.write_bytes(results[damage])
    with pytest.warns(CheckpointWarning, match=r"from .*step-3\.ckpt.*damaged: .*step-4\.ckpt \("):
        assert resumed(folder).checkpointer.steps == 3
    assert sorted(os.listdir(folder)) == ["step-3.ckpt", "step-4.ckpt.damaged"]


def test_sound_files_of_another_kind_stop_the_run_and_stay(folder):
    torch.save({"weights": torch.ones(2)}, folder / "step-9.ckpt")
    with pytest.raises(CheckpointError, match=r"step-9\.ckpt .*it is no checkpoint of.*move"):
        resumed(folder)
    content = torch.load(folder / "step-4.ckpt", weights_only=True)
    torch.save({**content, "format": 2}, folder / "step-9.ckpt")
    with pytest.raises(CheckpointError, match=r"step-9.*its format is 2, not 1.*that wrote"):
        resumed(folder)
    assert sorted(os.listdir(folder)) == ["step-3.ckpt", "step-4.ckpt", "step-9.ckpt"]


def test_when_all_are_damaged_no_start_begins_anew(folder):
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    for _ in range(3):
        with pytest.raises(CheckpointError, match=r"All checkpoints in .* damaged: .*step-4.*-3"):
            resumed(folder)
    assert sorted(os.listdir(folder)) == ["step-3.ckpt", "step-4.ckpt"]


def test_a_folder_that_cannot_be_written_is_noticed_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"kept in .*file/inside, which cannot be written"):
        resumed(tmp_path / "file" / "inside")
    with pytest.raises(CheckpointError, match=r"kept in .*file, which cannot be written: .*exists"):
        resumed(tmp_path / "file")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_kill_in_the_middle_of_a_save_costs_that_one_only(folder, moment):
    program = resumed(folder)
    program.training(*next(iter(program.loader)))
    child = os.fork()
    if child == 0:
        setattr(os, moment, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        program.checkpointer.step()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(list(folder.glob("abele-*-step-5.ckpt.part"))) == 1
    assert resumed(folder).checkpointer.steps == 4
    assert sorted(os.listdir(folder)) == ["step-3.ckpt", "step-4.ckpt"]


def test_only_the_last_ones_stay(tmp_path):
    program = Program(tmp_path, every=2, keep=3)
    program.run(epochs=2)
    assert sorted(os.listdir(tmp_path)) == ["step-10.ckpt", "step-12.ckpt", "step-8.ckpt"]
    again = Program(tmp_path, every=5, keep=1)
    again.run(epochs=2)
    assert again.losses == []  # it was complete
    again.run(epochs=3)
    assert os.listdir(tmp_path) == ["step-18.ckpt"]
    content = torch.load(tmp_path / "step-18.ckpt", weights_only=True)
    plain = Model()
    plain.load_state_dict(content["state_dict"])
    assert torch.equal(plain.last.weight, again.model.last.weight)


OTHERS = {
    "shapes": ({"model": lambda: Model(9)}, poptorch.Error, r"first.weight: \[8, 4\].*\[9, 4\]"),
    "names": (
        {"model": lambda: torch.nn.Sequential(Model())},
        poptorch.Error,
        r"0.first.weight: missing there",
    ),
    "accumulation": (
        {"options": {"gradientAccumulation": 1}, "loader": {"batch_size": 4}},
        poptorch.Error,
        "gradient_accumulation 2 there, 1 here",
    ),
    "batches": ({"loader": {"batch_size": 1}}, poptorch.Error, "combined batch 4 there, 2 here"),
    "data": ({"data": Data()}, None, ""),
    "optimizer": (
        {"optimizer": lambda p: poptorch.optim.SGD(p, lr=0.1, momentum=0.9)},
        poptorch.Error,
        "of optimizer AdamW, this one is SGD",
    ),
    "constants": (
        {"optimizer": lambda p: poptorch.optim.AdamW(p, lr=0.05, loss_scaling=2.0, eps=1e-3)},
        poptorch.Error,
        "variable attributes",
    ),
    "clipping": (
        {
            "optimizer": lambda p: poptorch.optim.AdamW(
                p, lr=0.05, loss_scaling=2.0, max_grad_norm=1.0
            )
        },
        poptorch.Error,
        "max_grad_norm inf there, 1.0 here",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_of_another_program_is_refused(folder, name):
    settings, kind, text = OTHERS[name]
    if kind is None:
        resumed(folder, **settings)
        return
    with pytest.raises(kind, match=text):
        resumed(folder, **settings)


def test_a_checkpoint_of_other_objects_is_refused(folder):
    program = Program(folder)
    trained = {"model": program.training, "optimizer": program.optimizer}
    same = {"loader": program.loader, "scheduler": program.scheduler}
    for others, text in (
        ({"loader": program.loader}, "other objects there: scheduler; here: none"),
        ({}, "a loader there: yes; here: no"),
        ({**same, "metric": Metric()}, "there: scheduler; here: scheduler, metric"),
    ):
        with pytest.raises(CheckpointError, match=text):
            Checkpointer(folder, **trained, **others).restore()


def test_a_checkpoint_of_another_number_of_instances_is_refused(folder):
    path = folder / "step-4.ckpt"
    content = torch.load(path, weights_only=True)
    content["instances"] *= 2
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="was written by 2 instances, this run has 1"):
        resumed(folder)


class Metric:
    def state_dict(self):
        return {"values": [1, {"function": print}]}

    def load_state_dict(self, state):
        raise NotImplementedError


def test_state_that_only_pickle_could_keep_is_refused(tmp_path):
    program = Program(tmp_path, metric=Metric())
    expected = r"metric\['values'\]\[1\]\['function'\] is a builtin_function_or_method"
    with pytest.raises(CheckpointError, match=expected):
        program.run()
    assert os.listdir(tmp_path) == []


def test_bad_arguments_are_told_at_once(tmp_path):
    program = Program(tmp_path)
    with pytest.raises(CheckpointError, match="every is a number of 1 or more, not 0"):
        Checkpointer(tmp_path, model=program.training, every=0)
    with pytest.raises(CheckpointError, match="keep is a number of 1 or more, not True"):
        Checkpointer(tmp_path, model=program.training, keep=True)
    with pytest.raises(CheckpointError, match=r"trainingModel returned, found a .*Model"):
        Checkpointer(tmp_path, model=program.model)
    with pytest.raises(CheckpointError, match="loader is a list without state_dict"):
        Checkpointer(tmp_path, model=program.training, loader=[1])
    bare = Checkpointer(tmp_path, model=program.training)
    with pytest.raises(CheckpointError, match="needs a loader"):
        next(bare.batches())
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        bare.save()
    assert list(bare.epochs(0)) == []


def test_popdist_is_imported_without_torch():
    source = Path(__file__).parents[2] / "src"
    code = "import sys, popdist; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(source)}, check=True)

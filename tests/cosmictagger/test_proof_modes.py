"""The device is an option: modes give the same losses, and a killed run ends with the same weights.

Ten steps of a small A21 on the published events at downsample 2, and on generated ones, through
the command line. Each mode is killed once more in the middle, by a real SIGKILL, and goes on.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cosmictagger import checkpoints
from cosmictagger.cli import main
from helpers.cosmic_reference import SAMPLE, needs_sample
from helpers.cosmic_small import column, record
from helpers.warm_python import python

STEPS, KILLED, EVERY = 10, 7, 4
MODES = {"CPU": "eager", "IPU": "reference", "RDU": "reference"}  # and what each compiles for here
SOURCES = [pytest.param("real", marks=needs_sample), "generated"]
COMMON = (
    "network=a21", "network.n_initial_filters=2", "network.blocks_per_layer=0",
    "network.blocks_deepest_layer=1", "network.bottleneck_deepest=4", "run.aux_iterations=0",
    "run.saver=False", f"mode.checkpoint_iteration={EVERY}", "data.seed=3", "framework.seed=5",
    # Channels-last batch normalisation of PyTorch on processors adds up in float32 one by one:
    # its statistics of an image of 320 x 512 are wrong from the fourth digit on.
    "data.data_format=channels_first",
)  # fmt: skip
EVENTS = {
    "real": (
        "data=real", f"data.data_directory={SAMPLE.parent}", f"data.file={SAMPLE.name}",
        "data.aux_file=", "data.img_transform=True", "data.downsample=2", "network.depth=2",
        "run.minibatch_size=1",
    ),
    "generated": (
        "data=generated", "data.events=5", "data.aux_events=0", "data.rows=128",
        "data.columns=256", "data.downsample=1", "network.depth=1", "run.minibatch_size=2",
    ),
}  # fmt: skip


def arguments(folder: Path, source: str, mode: str, name: str, steps: int) -> list[str]:
    return [
        f"run.id={name}", f"output_dir={output(folder, source, mode, name)}",
        f"run.compute_mode={mode}", f"run.iterations={steps}", *COMMON, *EVENTS[source],
        *([f"data.folder={folder.parent / 'events'}"] if source == "generated" else []),
    ]  # fmt: skip


def output(folder: Path, source: str, mode: str, name: str) -> Path:
    return folder / f"{source}-{mode}-{name}"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Trains without a break, each source and mode once; gives the output folder."""
    folder = tmp_path_factory.mktemp("modes")

    @functools.cache
    def trained(source: str, mode: str) -> Path:
        assert main(arguments(folder, source, mode, "straight", STEPS)) == 0
        return output(folder, source, mode, "straight")

    return trained


def losses(folder: Path) -> list[float]:
    return [float(loss) for loss in column(folder, "loss")]


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "CPU"])
@pytest.mark.parametrize("source", SOURCES)
def test_losses_are_those_of_cpu_mode(undisturbed, source, mode):
    expected, values = losses(undisturbed(source, "CPU")), losses(undisturbed(source, mode))
    assert len(expected) == STEPS
    assert len(set(expected)) == STEPS
    assert values == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", SOURCES)
def test_steps_ran_where_they_were_asked_to(undisturbed, source, mode):
    proof = record(undisturbed(source, mode))["proof"]
    assert (proof["mode"], proof["target"]) == (mode, MODES[mode])
    assert proof["training_steps"] == STEPS
    assert (proof["executable"] is None) == (mode == "CPU")


# The device has made the update when this kills, but log and tables do not know of it yet.
# One program for all, because importing takes longer than the steps.
PROGRAM = """
import json, os, signal, sys, torch
torch.set_num_threads(1)
import poptorch, sambaflow.samba
from matplotlib.figure import Figure
from cosmictagger import cli
from cosmictagger.modes import training

Figure.savefig = lambda self, file, **_: file.write(b"as in conftest.py")
last, launches = json.loads(sys.argv[1])
noted = training.Training._note

def note(self, batch, result, rate):
    if self.backend.training_steps == last:
        os.kill(os.getpid(), signal.SIGKILL)
    noted(self, batch, result, rate)

training.Training._note = note
for arguments in launches:
    child = os.fork()
    if not child:
        os._exit(cli.main(arguments))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == -signal.SIGKILL, (status, arguments)
"""


@pytest.fixture(scope="module")
def killed(undisturbed, tmp_path_factory):
    """Kills runs of a source, one per mode, in step 7; gives their folder.

    The last checkpoint that they leave has 4 steps.
    """
    folder = tmp_path_factory.mktemp("killed")

    @functools.cache
    def started(source: str) -> Path:
        for mode in MODES:
            straight = undisturbed(source, mode)
            if mode == "RDU":  # compiled once, as users do
                shutil.copytree(straight / "pef", output(folder, source, mode, "killed") / "pef")
        launches = [arguments(folder, source, mode, "killed", STEPS) for mode in MODES]
        done = subprocess.run(
            [python(), "-c", PROGRAM, json.dumps([KILLED, launches])],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert done.returncode == 0, done.stderr
        return folder

    return started


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "source", [pytest.param("real", marks=[needs_sample, pytest.mark.long]), "generated"]
)
def test_a_killed_run_ends_with_the_same_weights(undisturbed, killed, source, mode):
    folder, straight = killed(source), undisturbed(source, mode)
    out = output(folder, source, mode, "killed")
    before = checkpoints.load(checkpoints.locate(out))
    assert (record(out)["ended"], before["global_step"]) == (None, EVERY)
    assert record(out)["proof"]["training_steps"] == EVERY  # as of the checkpoint
    assert column(out, "step") == [str(step) for step in range(KILLED - 1)]
    assert main(arguments(folder, source, mode, "killed", STEPS - EVERY)) == 0
    assert losses(out)[KILLED - 1 :] == losses(straight)[EVERY:]
    assert record(out)["weights_hash"] == record(straight)["weights_hash"]
    assert record(out)["weights_hash"] != checkpoints.weights_hash(before["state_dict"])

"""Instances of one run that cannot go on: one clear error, nobody waits, nothing is lost."""

import json
from pathlib import Path

import pytest

from cosmictagger import checkpoints
from helpers import instances
from helpers.cosmic_small import column, given, record
from helpers.instances import Ended

COMMAND = Path(__file__).parents[1] / "helpers" / "cosmic_command.py"
INFERENCE = ("mode=inference", "mode.weights_location=random", "mode.displays=0")
TRAINING = ("run.iterations=4", "run.aux_iterations=0", "mode.checkpoint_iteration=2")


@pytest.fixture
def share(events_folder, tmp_path):
    """Runs a command line in instances in CPU mode; gives how they ended and the output folder."""

    def launched(
        count: int, *overrides: str, name: str = "x", **changed: str
    ) -> tuple[list[Ended], Path]:
        output = tmp_path / name
        changing = {override.split("=")[0] for override in overrides}
        kept = [a for a in given(events_folder) if a.split("=")[0] not in changing]
        arguments = [f"output_dir={output}", *kept, "run.distributed=True", *overrides]
        with instances.started(COMMAND, arguments, count, changed=changed) as running:
            return instances.results(running, within_s=300), output

    return launched


def check(ended: list[Ended], *words: str) -> None:
    """All have failed, and all that is printed are errors of ours with these words in one."""
    assert {one.status for one in ended} <= {1, 2}
    lines = [line for one in ended for line in one.err.splitlines()]
    assert [line for line in lines if not line.startswith("cosmictagger: ")] == []
    assert [line for line in lines if all(word in line for word in words)], lines


def contents(folder: Path) -> dict[str, bytes]:
    names = ("predictions.h5", "event_metrics.csv", "ana_metrics.csv")
    return {name: (folder / name).read_bytes() for name in names}


@pytest.mark.usefixtures("plane_net")
@pytest.mark.parametrize("trouble", ["full", pytest.param("died", marks=pytest.mark.long)])
def test_a_pass_that_lost_an_instance_can_start_again(share, run, trouble):
    """The second instance fails as it writes; another launch leaves the files of one process."""
    status, one = run(*INFERENCE, name="one")
    assert status == 0
    ended, many = share(2, *INFERENCE, f"1:{trouble}=part.ckpt", ABELE_RANK_TIMEOUT="30")
    assert ended[1].status == (1 if trouble == "full" else -9)
    check(ended[:1], "Process 0 of 2 waited at 'the end of the steps of a pass', but process 1")
    assert record(many)["ended"].startswith("failed: Process 0 of 2 waited")
    assert not (many / "predictions.h5").exists()
    ended, many = share(2, *INFERENCE)
    assert [each.status for each in ended] == [0, 0], ended[0].err + ended[1].err
    assert ended[1].out == ""
    assert contents(one) == contents(many)
    assert json.dumps(record(one)["metrics"]) == json.dumps(record(many)["metrics"])
    assert not (many / "parts").exists()


def test_a_file_that_one_instance_lacks(share, events_folder, tmp_path):
    relative = f"data.data_directory={events_folder.name}"
    ended, _ = share(
        2, *TRAINING, relative, f"0:folder={events_folder.parent}", f"1:folder={tmp_path}"
    )
    check(ended, "Instance 1 of 2: The event file", "does not exist")
    assert ended[1].err == ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "overrides", "words"),
    [
        (TRAINING, ["1:data.seed=8"], ["data.seed is 7 on process 0 and 8 on process 1"]),
        (INFERENCE, ["1:run.minibatch_size=1"], ["run.minibatch_size is 2 on process 0 and 1"]),
        (TRAINING, ["run.minibatch_size=3"], ["=3 was asked for, which 2 processes cannot share"]),
        (TRAINING, ["data.file=aux.h5", "run.minibatch_size=4"], ["takes 4 events", "have 3"]),
        (INFERENCE, ["1:full=part.ckpt"], ["Instance 1 of 2: ", "No space left on device"]),
        (TRAINING, ["0:full=model-4"], ["model-4.ckpt", "No space left on device"]),
        (TRAINING, ["1:full=rank_1"], ["rank_1.npy", "No space left on device"]),
    ],
)
def test_trouble_is_said_once_and_ends_all(share, mode, overrides, words):
    ended, _ = share(2, *mode, *overrides)
    check(ended, *words)


@pytest.mark.long
@pytest.mark.parametrize("trouble", ["full", "died"])
def test_training_that_lost_an_instance_goes_on_to_the_same_bits(share, trouble):
    """It fails as it writes a checkpoint; another launch goes on from the one before."""
    ended, straight = share(2, "run.iterations=6", *TRAINING[1:], name="straight")
    assert [one.status for one in ended] == [0, 0], ended[0].err
    ended, folder = share(2, *TRAINING, f"0:{trouble}=model-4", ABELE_RANK_TIMEOUT="30")
    assert ended[0].status == (1 if trouble == "full" else -9)
    assert [path.name for path in (folder / "checkpoints").glob("*.ckpt")] == ["model-2.ckpt"]
    ended, _ = share(2, *TRAINING)
    assert [one.status for one in ended] == [0, 0]
    assert "Going on after step 2" in ended[0].out
    assert record(folder)["weights_hash"] == record(straight)["weights_hash"]
    assert column(folder, "loss")[-4:] == column(straight, "loss")[-4:]
    ends = [checkpoints.load(checkpoints.locate(each)) for each in (folder, straight)]
    assert ends[0]["loader"] == ends[1]["loader"]

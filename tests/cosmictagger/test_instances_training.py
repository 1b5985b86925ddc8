"""Several instances train one network: the weights, metrics and files of one process."""

from pathlib import Path

import pytest
import torch

from cosmictagger import checkpoints, cli, measures
from helpers.cosmic_small import column, given, record
from helpers.instances import Ended, results, started

# Without batch norm, whose statistics are those of each replica's images.
PLAIN = ("network.normalization=none", "run.aux_iterations=2")


@pytest.fixture
def share(events_folder, tmp_path):
    """Runs a command line in several instances; gives how they ended and the output folder."""

    def launched(
        count: int, *overrides: str, name: str, replicas: int = 1, **changed: str
    ) -> tuple[list[Ended], Path]:
        output = tmp_path / name
        kept = [a for a in given(events_folder, name) if "compute_mode" not in a]
        arguments = [f"output_dir={output}", *kept, *PLAIN, *overrides]
        file = Path(cli.__file__)
        with started(file, arguments, count, replicas=replicas, changed=changed) as running:
            return results(running, 300), output

    return launched


def content(folder: Path) -> dict:
    return checkpoints.load(checkpoints.locate(folder))


def assert_same_training(one: Path, other: Path, tolerance: float = 1e-5) -> None:
    """Weights, optimizer state and position are those of the other run."""
    left, right = content(one), content(other)
    assert left["global_step"] == right["global_step"]
    assert left["images"] == right["images"]
    for name, value in left["state_dict"].items():
        torch.testing.assert_close(
            value, right["state_dict"][name], rtol=tolerance, atol=tolerance * value.abs().max()
        )
    assert left["optimizer"].keys() == right["optimizer"].keys()
    state = ("epoch", "position", "origin", "step_size", "seed")
    assert [left["loader"][n] for n in state] == [right["loader"][n] for n in state]


def test_instances_with_replicas_train_one_network(share, run):
    """2 x 2 replicas make the updates of 4 in one process, which then goes on with the run."""
    settings = ("run.compute_mode=IPU", "run.minibatch_size=1", *PLAIN)
    ended, shared = share(2, *settings, "run.iterations=3", name="shared", replicas=2)
    assert [one.status for one in ended] == [0, 0], ended[0].err
    assert ended[1].out == ""
    of_run = record(shared)
    assert of_run["instances"] == 2
    assert of_run["proof"]["backend"] == "poptorch, 2 instances with 2 replicas each"
    assert sorted(path.name for path in shared.iterdir()) == [
        "checkpoints", "compute", "curves.png", "process.log", "profiles", "run.json",
        "test_metrics.csv", "train_metrics.csv", "training.html",
    ]  # fmt: skip
    assert sorted(path.name for path in (shared / "profiles").iterdir()) == [
        "args.json", "profiling_info_rank_0.npy", "profiling_info_rank_1.npy",
    ]  # fmt: skip
    alone = (*settings, "run.num_replicas=4")
    assert run(*alone, "run.iterations=2", name="shared")[0] == 0
    assert "Going on after step 3" in (shared / "process.log").read_text()
    status, straight = run(*alone, "run.iterations=5", name="straight")
    assert status == 0
    assert_same_training(shared, straight)
    for name in ("Average/Total_Accuracy", "plane2/Cosmic_IoU", "plane0/Non_Bkg_Accuracy"):
        assert column(shared, name) == column(straight, name)


def test_processes_share_a_run_in_cpu_mode(share, run):
    """Two processes make the updates of one with two micro-batches, which is what DDP averages.

    A validation takes four images: of the three that there are, the second process has one.
    """
    cpu = ("run.compute_mode=CPU", "run.iterations=3", *PLAIN)
    ended, shared = share(
        2, *cpu, "run.distributed=True", "run.minibatch_size=4", name="shared"
    )  # fmt: skip
    assert [one.status for one in ended] == [0, 0], ended[0].err
    micro = ("run.minibatch_size=2", "mode.optimizer.gradient_accumulation=2")
    status, alone = run(*cpu, *micro, name="alone")
    assert status == 0
    assert_same_training(shared, alone)
    assert column(shared, "Average/mIoU") == column(alone, "Average/mIoU")
    assert "DistributedDataParallel (gloo) in 2 processes" in record(shared)["proof"]["backend"]


def test_an_epoch_of_two_processes(share, run):
    """One process goes on with the next epoch.

    Seven events make four steps of two images. Two processes validate on the three events in two
    batches, the last of which is empty for one of them, and one process in three.
    """
    plain = ("run.compute_mode=CPU", *PLAIN)
    ended, shared = share(
        2, *plain, "run.epochs=1", "run.distributed=True", "run.minibatch_size=2", name="shared"
    )
    assert [one.status for one in ended] == [0, 0], ended[0].err
    micro = ("run.minibatch_size=1", "mode.optimizer.gradient_accumulation=2")
    status, alone = run(*plain, *micro, "run.epochs=1", name="alone")
    assert status == 0
    assert_same_training(shared, alone)
    assert column(shared, "step", "test") == column(alone, "step", "test") == ["4"]
    names = [name for name in measures.KEYS if "Average" in name]
    for name in names:
        assert column(shared, name, "test") == column(alone, name, "test")
    assert run(*plain, *micro, "run.epochs=2", name="shared")[0] == 0
    assert column(shared, "step", "test") == ["4", "7"]
    assert content(shared)["images"] == 14

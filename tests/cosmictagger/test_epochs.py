"""Runs whose length is in epochs: their steps, their validation, and how they go on."""

import os
import re
import signal

import numpy as np
import pytest
import torch

from cosmictagger import checkpoints, measures
from cosmictagger.backends.plain import PlainBackend
from cosmictagger.modes import training
from helpers.cosmic_small import column, record


def steps(folder, saver="train"):
    return [int(step) for step in column(folder, "step", saver)]


def test_each_epoch_ends_with_a_validation_on_the_whole_file(run, monkeypatch):
    """Seven events to train on, in steps of two; three to validate on, in batches of 2 and 1."""
    seen = []
    evaluate = PlainBackend.evaluate_step

    def watched(self, batch):
        result = evaluate(self, batch)
        seen.append((batch, result))
        return result

    monkeypatch.setattr(PlainBackend, "evaluate_step", watched)
    status, out = run("run.epochs=2", "run.aux_iterations=1")
    assert status == 0
    assert (steps(out), steps(out, "test")) == (list(range(7)), [4, 7])
    assert [batch.entries for batch, _ in seen] == [[0, 1], [2]] * 2
    rows = [
        row for batch, result in seen[2:] for row in measures.per_event(result.logits, batch.label)
    ]
    for name, value in measures.average(rows).items():
        assert float(column(out, name, "test")[1]) == pytest.approx(value, abs=1e-5)
    losses = [float(result.loss) for _, result in seen[2:]]
    mean = (2 * losses[0] + losses[1]) / 3
    assert float(column(out, "loss", "test")[1]) == pytest.approx(mean, abs=1e-5)
    log = (out / "process.log").read_text()
    assert "Epoch 1 of 2 ends with step 4." in log
    assert "run.aux_iterations=1 has no effect: with run.epochs each epoch ends" in log
    assert re.search(r"test Step 7 metrics: loss: ", log)


def test_validation_changes_no_weights_and_zero_turns_it_off(run):
    _, plain = run("run.iterations=4", "run.aux_iterations=0", name="plain")
    for overrides in ((), ("run.aux_iterations=0",)):
        _, out = run("run.epochs=1", *overrides, name=f"epochs{len(overrides)}")
        assert record(out)["weights_hash"] == record(plain)["weights_hash"]
        assert (out / "test_metrics.csv").exists() is not bool(overrides)


def test_epochs_count_from_the_start_of_the_run(run):
    """A run that was stopped makes the rest of them, and one that has made them makes none."""
    _, out = run("run.iterations=5", "run.aux_iterations=0")
    assert run("run.epochs=3")[0] == 0
    assert (steps(out), steps(out, "test")) == (list(range(11)), [7, 11])
    before = record(out)["weights_hash"]
    assert run("run.epochs=2")[0] == 0
    assert steps(out) == list(range(11))
    assert record(out)["weights_hash"] == before
    assert record(out)["ended"] == "finished"
    said = r"WARNING - Nothing is trained: run.epochs=2 counts .* has made 3.143. Ask for more"
    assert re.search(said, (out / "process.log").read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_gives_a_validation_up(run, monkeypatch, number):
    evaluate = PlainBackend.evaluate_step

    def watched(self, batch):
        assert batch.entries == [0, 1]
        os.kill(os.getpid(), number)
        return evaluate(self, batch)

    monkeypatch.setattr(PlainBackend, "evaluate_step", watched)
    status, out = run("run.epochs=2")
    assert status == 128 + number
    assert not (out / "test_metrics.csv").exists()
    assert "The validation after step 4 is given up." in (out / "process.log").read_text()
    assert checkpoints.load(checkpoints.locate(out))["global_step"] == 4


def test_a_long_validation_shows_its_progress(run, monkeypatch):
    labels, shown = [], training.progress

    def watched(items, label):
        labels.append((label, len(items)))
        return shown(items, label)

    monkeypatch.setattr(training, "progress", watched)
    run("run.epochs=2")
    assert labels == [("Validating after epoch 1", 2), ("Validating after epoch 2", 2)]


def test_events_in_the_order_of_the_file(run, monkeypatch):
    seen = []
    step = PlainBackend.train_step

    def watched(self, batch, rate):
        seen.extend(batch.entries)
        return step(self, batch, rate)

    monkeypatch.setattr(PlainBackend, "train_step", watched)
    run("run.epochs=2", "data.random_mode=serial_access", "run.aux_iterations=0")
    assert seen == [*range(7), *range(7)]
    run("run.epochs=2", "run.aux_iterations=0", name="shuffled")
    assert seen[14:] != seen[:14]
    assert np.bincount(seen[14:]).tolist() == [2] * 7


def test_epochs_of_compiled_modes(run, plane_net):
    """The last batch of the validation is padded to the program's size, and counts one event."""
    outs = [run("run.epochs=1", f"run.compute_mode={m}", name=m)[1] for m in ("CPU", "IPU", "RDU")]
    for name in ("loss", "Average/mIoU"):
        plain, *others = ([float(v) for v in column(out, name, "test")] for out in outs)
        assert len(plain) == 1
        for other in others:
            torch.testing.assert_close(other, plain, atol=1e-3, rtol=1e-3)

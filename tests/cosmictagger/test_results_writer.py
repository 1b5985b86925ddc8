"""Results of a pass: every file, a few events in memory, nothing after an exception."""

import contextlib
import csv

import numpy as np
import pytest
import torch

from cosmictagger.data.loader import Batch
from cosmictagger.errors import DataError
from cosmictagger.results import Collector, write_files
from cosmictagger.results.predictions import open_predictions
from cosmictagger.results.writer import image_size_text

pytestmark = pytest.mark.usefixtures("quick_pictures")

SIZE, RUN = (16, 32), (8, 16)


PROOF = {"mode": "CPU", "compile_seconds": 0.25}


def batch(entries, label=True):
    generator = torch.Generator().manual_seed(entries[0])
    shape = (len(entries), 3, *RUN)
    truth = torch.randint(0, 3, shape, generator=generator)
    ids = np.array([[1, 0, 100 + entry] for entry in entries])
    return Batch(1.0 + truth, truth if label else None, list(entries), ids)


def logits(batch, padding=0):
    shape = (len(batch.entries) + padding, 3, *RUN)
    generator = torch.Generator().manual_seed(9)
    return tuple(torch.randn(shape, generator=generator) for _ in range(3))


def rows(batch, value=None):
    return [{"Average/mIoU": entry / 10 if value is None else value} for entry in batch.entries]


@contextlib.contextmanager
def writer(folder, displays=8):
    with Collector(folder, SIZE, 1, displays) as results:
        yield results
    size = {"image size": image_size_text(SIZE, 1)}
    events = results.candidates.events()
    results.page = write_files(folder, results.tally, events, PROOF, size, progress=False)


def displays(folder):
    """Return the numbers of the events whose pictures are in a folder of results."""
    return sorted(int(path.stem.removeprefix("entry_")) for path in folder.glob("displays/*.png"))


def test_everything_is_written(tmp_path):
    (tmp_path / "train_metrics.csv").write_text("step,loss\n0,3\n1,2\n")
    with writer(tmp_path, displays=2) as results:
        for entries in ((0, 1), (2,)):
            events = batch(entries)
            results.add(events, logits(events), rows(events))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "curves.png",
        "displays",
        "event_metrics.csv",
        "predictions.h5",
        "report.html",
        "train_metrics.csv",
    ]
    with open_predictions(tmp_path / "predictions.h5") as predictions:
        assert predictions.image_size == RUN
        assert predictions.event_ids[:, 2].tolist() == [100, 101, 102]
    with (tmp_path / "event_metrics.csv").open() as table:
        assert [row["entry"] for row in csv.DictReader(table)] == ["0", "1", "2"]
    page = results.page.read_text()
    for wanted in ("compile seconds", "downsample 1 (8 x 16)", "predictions.h5", "Training"):
        assert wanted in page


def test_the_worst_and_the_best_are_kept_and_no_more(tmp_path):
    order = [5, 2, 9, 0, 7, 1, 8, 3, 6, 4]
    with writer(tmp_path, displays=4) as results:
        for entry in order:
            events = batch((entry,))
            results.add(events, logits(events), rows(events))
            assert len(results.candidates) <= 4
    assert displays(tmp_path) == [0, 1, 8, 9]


def test_pictures_of_an_earlier_pass_go(tmp_path):
    for entry in (1, 2):
        events = batch((entry,))
        with writer(tmp_path) as results:
            results.add(events, logits(events), rows(events))
    assert displays(tmp_path) == [2]


def test_without_labels_there_are_scores_and_the_first_events(tmp_path):
    with writer(tmp_path, displays=1) as results:
        for entry in (4, 5):
            events = batch((entry,), label=False)
            results.add(events, logits(events))
    assert displays(tmp_path) == [4]
    assert "no labels" in results.page.read_text()
    assert not results.tally.confusion.any()


def test_padding_of_a_fixed_batch_size_is_left_out(tmp_path):
    events = batch((0,))
    with writer(tmp_path) as results:
        results.add(events, logits(events, padding=3), rows(events))
    with open_predictions(tmp_path / "predictions.h5") as predictions:
        assert len(predictions) == 1


def test_confusion_and_scores_come_from_the_same_logits(tmp_path):
    events = batch((0, 1))
    with writer(tmp_path) as results:
        results.add(events, logits(events), rows(events))
    predicted = torch.stack([plane.argmax(1) for plane in logits(events)], dim=1)
    for true in range(3):
        for guess in range(3):
            count = int(((events.label == true) & (predicted == guess)).sum())
            assert results.tally.confusion[:, true, guess].sum() == count


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_exception_leaves_nothing(tmp_path, error):
    events = batch((0,))

    def stopped():
        with writer(tmp_path) as results:
            results.add(events, logits(events), rows(events))
            raise error

    with pytest.raises(error):
        stopped()
    assert not list(tmp_path.iterdir())


def test_what_does_not_fit_is_refused(tmp_path):
    events, blind = batch((3,)), batch((3,), label=False)
    with writer(tmp_path) as results:
        with pytest.raises(DataError, match=r"needed are three of \[1 or more, 3, 8, 16\]"):
            results.add(events, logits(events)[:2], rows(events))
        with pytest.raises(DataError, match=r"\(1, 3, 4, 16\).*downsample 1"):
            results.add(events, [plane[:, :, :4] for plane in logits(events)], rows(events))
        with pytest.raises(DataError, match="1 events with labels, rows of metrics: none"):
            results.add(events, logits(events))
        with pytest.raises(DataError, match="1 events without labels, rows of metrics: 1"):
            results.add(blind, logits(blind), rows(blind))
        broken = logits(events)
        broken[1][0, 0, 0, 0] = torch.nan
        with pytest.raises(DataError, match="Entry 3 of the events: the network's output"):
            results.add(events, broken, rows(events))
    with pytest.raises(DataError, match="downsample=9 does not fit"):
        Collector(tmp_path, SIZE, 9, 1)

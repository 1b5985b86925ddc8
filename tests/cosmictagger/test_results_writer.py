"""Results of a pass: every file, a few events in memory, nothing after an exception."""

import contextlib
import csv

import numpy as np
import pytest
import torch

from cosmictagger.data.loader import Batch
from cosmictagger.results.predictions import open_predictions, predictions_writer
from cosmictagger.results.tally import Row, Tally
from cosmictagger.results.writer import Collector, write_files

pytestmark = pytest.mark.usefixtures("quick_pictures")

RUN = (8, 16)

PROOF = {"mode": "CPU", "compile_seconds": 0.25}


def batch(entries, label=True):
    generator = torch.Generator().manual_seed(entries[0])
    shape = (len(entries), 3, *RUN)
    truth = torch.randint(0, 3, shape, generator=generator)
    ids = np.array([[1, 0, 100 + entry] for entry in entries])
    return Batch(1.0 + truth, truth if label else None, list(entries), ids)


def logits(batch):
    shape = (len(batch.entries), 3, *RUN)
    generator = torch.Generator().manual_seed(9)
    return tuple(torch.randn(shape, generator=generator) for _ in range(3))


class Results:
    """Adds batches to a collector, with a metric that rises with the entry."""

    def __init__(self, collector):
        self.collector, self.rows, self.page = collector, [], None

    def add(self, events):
        ids = [tuple(each) for each in events.event_ids.tolist()]
        labelled = events.label is not None
        metrics = [{"Average/mIoU": entry / 10} if labelled else {} for entry in events.entries]
        rows = list(map(Row, events.entries, ids, metrics))
        self.collector.add(events, logits(events), rows)
        self.rows += rows


@contextlib.contextmanager
def writer(folder, displays=8):
    with predictions_writer(folder, RUN) as predictions:
        results = Results(Collector(predictions, 1, displays))
        yield results
    events = results.collector.candidates.events()
    tally = Tally(results.rows, results.collector.confusion)
    results.page = write_files(folder, tally, events, PROOF, {"size": "8 x 16"})


def displays(folder):
    """Return the numbers of the events whose pictures are in a folder of results."""
    return sorted(int(path.stem.removeprefix("entry_")) for path in folder.glob("displays/*.png"))


def test_everything_is_written(tmp_path):
    (tmp_path / "train_metrics.csv").write_text("step,loss\n0,3\n1,2\n")
    with writer(tmp_path, displays=2) as results:
        for entries in ((0, 1), (2,)):
            events = batch(entries)
            results.add(events)
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
    for wanted in ("compile seconds", "8 x 16", "predictions.h5", "Training"):
        assert wanted in page


def test_the_worst_and_the_best_are_kept_and_no_more(tmp_path):
    order = [5, 2, 9, 0, 7, 1, 8, 3, 6, 4]
    with writer(tmp_path, displays=4) as results:
        for entry in order:
            events = batch((entry,))
            results.add(events)
            assert len(results.collector.candidates) <= 4
    assert displays(tmp_path) == [0, 1, 8, 9]


def test_pictures_of_an_earlier_pass_go(tmp_path):
    for entry in (1, 2):
        events = batch((entry,))
        with writer(tmp_path) as results:
            results.add(events)
    assert displays(tmp_path) == [2]


def test_without_labels_there_are_scores_and_the_first_events(tmp_path):
    with writer(tmp_path, displays=1) as results:
        for entry in (4, 5):
            events = batch((entry,), label=False)
            results.add(events)
    assert displays(tmp_path) == [4]
    assert "no labels" in results.page.read_text()
    assert not results.collector.confusion.any()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_exception_leaves_nothing(tmp_path, error):
    events = batch((0,))

    def stopped():
        with writer(tmp_path) as results:
            results.add(events)
            raise error

    with pytest.raises(error):
        stopped()
    assert not list(tmp_path.iterdir())

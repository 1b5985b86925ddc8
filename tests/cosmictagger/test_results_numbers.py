"""The numbers of the page over pixels with charge follow from predictions.h5 and the labels."""

import csv
import itertools
import re
import warnings

import numpy as np
import pytest

from cosmictagger.data.larcv import EventFile
from cosmictagger.results.predictions import open_predictions
from helpers.cosmic_reference import SAMPLE, needs_sample

pytestmark = pytest.mark.usefixtures("quick_pictures", "plane_net")
NAMES = list(itertools.product(("Cosmic", "Neutrino"), ("IoU", "Efficiency", "Purity")))


def counted(predictions, events, k):
    """Pixels by event, plane, true class and predicted class."""
    with open_predictions(predictions) as scored, EventFile(events) as source:
        counts = np.zeros((len(scored), 3, 3, 3), int)
        height, width = source.image_size
        for event, plane in np.ndindex(counts.shape[:2]):
            label = np.zeros(width * height, int)
            ids, classes = source.sparse(source.label, event)[plane]
            label[ids.astype(int)] = classes
            # Cells take the largest class; ids run down the columns.
            cells = label.reshape(width >> k, 1 << k, height >> k, 1 << k).max(axis=(1, 3))
            ids, chosen = scored.sparse("class_prediction", event)[plane]
            true = cells.reshape(-1)[ids.astype(int)]
            np.add.at(counts[event, plane], (true, chosen.astype(int)), 1)
    return counts


def metrics(counts):
    """By event, average or plane, and name."""
    right = np.diagonal(counts, axis1=2, axis2=3)[..., 1:]
    true, claimed = counts.sum(axis=3)[..., 1:], counts.sum(axis=2)[..., 1:]
    either = true + claimed - right
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore")  # of means of nothing
        iou = np.where(either, right / either, 1)
        planes = np.stack([iou, right / true, right / claimed], axis=-1).reshape(len(counts), 3, 6)
        return np.concatenate([np.nanmean(planes, axis=1, keepdims=True), planes], axis=1)


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=needs_sample)])
def test_predictions_reproduce_the_page(run, events_folder, real):
    path, k = (SAMPLE, 2) if real else (events_folder / "train.h5", 1)
    files = (f"data.data_directory={path.parent}", f"data.file={path.name}", f"data.downsample={k}")
    status, out = run("mode=inference", "mode.weights_location=random", *files)
    assert status == 0
    values = metrics(counts := counted(out / "predictions.h5", path, k))
    with (out / "event_metrics.csv").open() as table:
        for row, wanted in zip(csv.DictReader(table), values, strict=True):
            for place, numbers in zip(
                ("Average", "plane0", "plane1", "plane2"), wanted, strict=True
            ):
                written = [float(row[f"charge/{place}/{a}_{b}"]) for a, b in NAMES]
                assert written == pytest.approx(numbers.tolist(), abs=5.1e-6, nan_ok=True)
    page = (out / "report.html").read_text()
    for (name, kind), column in zip(NAMES, values[:, 0].T, strict=True):
        kind = kind if kind == "IoU" else kind.lower()
        row = re.search(rf"<tr><td>{name} {kind}</td>.*?</tr>", page)[0]
        some = column[~np.isnan(column)]
        error = 100 * some.std(ddof=1) / len(some) ** 0.5
        assert f">{100 * some.mean():.2f} ± {error:.2f} %</td>" in row
    for classes in (total := counts.sum(axis=(0, 1))):
        for share in 100 * classes / classes.sum():
            assert f">{share:.2f} % of {classes.sum():,}</span>" in page
    for right, claimed in zip(np.diagonal(total), total.sum(axis=0), strict=True):
        assert f'<td class="number">{100 * right / claimed:.2f} % of {claimed:,}</td>' in page

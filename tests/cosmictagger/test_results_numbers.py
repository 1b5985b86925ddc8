"""The numbers of the page over pixels with charge follow from predictions.h5 and the labels."""

import csv
import re

import numpy as np
import pytest

from cosmictagger.data.larcv import EventFile
from cosmictagger.results.predictions import open_predictions
from helpers.cosmic_reference import SAMPLE, needs_sample

pytestmark = pytest.mark.usefixtures("quick_pictures")

NAMES = {1: "Cosmic", 2: "Neutrino"}


def largest_of_cells(planes, size, k):
    """Labels of the cells of 2^k x 2^k pixels, by numpy alone."""
    for ids, values in planes:
        label = np.zeros((size[1], size[0]), int)
        label.reshape(-1)[ids.astype(int)] = values
        cells = label.reshape(size[1] >> k, 1 << k, size[0] >> k, 1 << k)
        yield cells.max(axis=(1, 3)).reshape(-1)  # by id: column * rows + row


def recounted(predictions, events, k):
    """IoU, efficiency and purity of each event, and the confusion of all, by numpy alone."""
    rows, confusion = [], np.zeros((3, 3), int)
    with open_predictions(predictions) as scored, EventFile(events) as source:
        for event in range(len(scored)):
            assert (scored.event_ids[event] == source.event_ids[event]).all()
            labels = largest_of_cells(source.sparse(source.label, event), source.image_size, k)
            values = {}
            classes = scored.sparse("class_prediction", event)
            for plane, (label, (ids, chosen)) in enumerate(zip(labels, classes, strict=True)):
                true, guess = label[ids.astype(int)], chosen.astype(int)
                np.add.at(confusion, (true, guess), 1)
                for number, name in NAMES.items():
                    is_true, is_guess = true == number, guess == number
                    right = (is_true & is_guess).sum()
                    key = f"charge/plane{plane}/{name}_"
                    either = (is_true | is_guess).sum()
                    values[key + "IoU"] = right / either if either else 1.0
                    values[key + "Efficiency"] = right / n if (n := is_true.sum()) else np.nan
                    values[key + "Purity"] = right / n if (n := is_guess.sum()) else np.nan
            for name in NAMES.values():
                for kind in ("IoU", "Efficiency", "Purity"):
                    planes = [values[f"charge/plane{plane}/{name}_{kind}"] for plane in range(3)]
                    some = [value for value in planes if not np.isnan(value)]
                    values[f"charge/Average/{name}_{kind}"] = np.mean(some) if some else np.nan
            rows.append(values)
    return rows, confusion


def check(out, events, k):
    rows, confusion = recounted(out / "predictions.h5", events, k)
    with (out / "event_metrics.csv").open() as table:
        written = list(csv.DictReader(table))
    for row, wanted in zip(written, rows, strict=True):
        values = {key: float(row[key]) for key in wanted}
        assert values == pytest.approx(wanted, abs=5.1e-6, nan_ok=True)
    page = (out / "report.html").read_text()
    shown = []
    for name in NAMES.values():
        for kind in ("IoU", "Efficiency", "Purity"):
            values = np.array([row[f"charge/Average/{name}_{kind}"] for row in rows])
            values = values[~np.isnan(values)]
            if len(values) > 1:
                mean, error = values.mean(), values.std(ddof=1) / len(values) ** 0.5
                shown.append(f"{100 * mean:.2f} ± {100 * error:.2f} %")
                row = re.search(
                    rf"<tr><td>{name} {kind if kind == 'IoU' else kind.lower()}</td>.*?</tr>", page
                )
                assert f">{shown[-1]}</td>" in row[0]
    for true, guess in np.ndindex(3, 3):
        share = confusion[true, guess] / confusion[true].sum()
        assert f">{100 * share:.2f} % of {confusion[true].sum():,}</span>" in page
    return shown


def test_small_events(run, events_folder, plane_net):
    status, out = run("mode=inference", "mode.weights_location=random", "mode.displays=1")
    assert status == 0
    shown = check(out, events_folder / "train.h5", 1)
    assert len(set(shown)) > 3


@needs_sample
def test_real_events(run, plane_net):
    status, out = run(
        "mode=inference", "mode.weights_location=random", "mode.displays=1", "data.downsample=2",
        f"data.data_directory={SAMPLE.parent}", f"data.file={SAMPLE.name}",
    )  # fmt: skip
    assert status == 0
    check(out, SAMPLE, 2)

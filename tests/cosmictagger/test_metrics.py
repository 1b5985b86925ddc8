"""Metrics against the original's numbers, against numpy, and where classes are absent."""

import math

import numpy as np
import pytest
import torch

from cosmictagger import measures
from cosmictagger.errors import DataError
from cosmictagger.results.tally import Neutrino, neutrino_of
from helpers import cosmic_reference as reference

# Average and planes, in the order of metrics.NAMES.
PUBLISHED = [
    [0.467618, 0.018522, 0.001522, 0.536651, 0.010022],
    [0.461755, 0.019456, 0.002211, 0.552756, 0.010833],
    [0.457565, 0.018658, 0.001450, 0.560835, 0.010054],
    [0.483533, 0.017452, 0.000905, 0.496361, 0.009178],
]


@reference.needs_sample
def test_the_published_metrics():
    logits = list(torch.from_numpy(reference.published_logits()))
    label = torch.from_numpy(reference.labels())
    output = measures.compute(logits, label)
    assert list(output.values()) == pytest.approx(np.ravel(PUBLISHED).tolist(), abs=6e-7)
    predicted = measures._highest_of_all(logits).long()
    assert measures.compute(predicted, label) == output
    wanted = reference.metrics(predicted.numpy(), label.numpy())
    assert {key: output[key] for key in wanted} == pytest.approx(wanted, rel=1e-12)


@reference.needs_sample
def test_metrics_of_a_network_on_real_events():
    logits = list(torch.from_numpy(reference.network_logits()))
    classes = measures.compute(logits, torch.from_numpy(reference.labels()))
    wanted = reference.metrics(measures._highest_of_all(logits).long().numpy(), reference.labels())
    assert {key: classes[key] for key in wanted} == pytest.approx(wanted, rel=1e-12)


def test_keys_are_in_the_order_of_the_original():
    label = torch.zeros(1, 3, 2, 2, dtype=torch.int64)
    keys = list(measures.compute(label, label))
    assert keys[:6] == [
        "Average/Total_Accuracy",
        "Average/Cosmic_IoU",
        "Average/Neutrino_IoU",
        "Average/Non_Bkg_Accuracy",
        "Average/mIoU",
        "plane0/Total_Accuracy",
    ]
    assert len(keys) == 20
    assert keys[-1] == "plane2/mIoU"


def random_labels(images, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, classes, (images, 3, 6, 5), generator=generator)


@pytest.mark.parametrize(("predicted", "true"), [(3, 3), (2, 3), (3, 1), (1, 1), (2, 2)])
def test_every_image_is_counted_by_itself(predicted, true):
    predicted, true = random_labels(4, predicted, 1), random_labels(4, true, 2)
    true[1] = 0  # an image without labelled pixels
    output = measures.compute(predicted, true)
    wanted = reference.metrics(predicted.numpy(), true.numpy())
    assert {key: output[key] for key in wanted} == pytest.approx(wanted, nan_ok=True)
    rows = measures.per_event(predicted, true)
    assert measures.average(rows)["plane1/mIoU"] == pytest.approx(output["plane1/mIoU"])
    for image, row in enumerate(rows):
        alone = measures.compute(predicted[image : image + 1], true[image : image + 1])
        assert row == pytest.approx(alone, nan_ok=True)


def test_an_image_without_labels_spoils_no_average():
    true = torch.zeros(2, 3, 2, 2, dtype=torch.int64)
    predicted = true.clone()
    true[0, :, 0] = 1
    predicted[0, :, 0, 0] = 1
    rows = measures.per_event(predicted, true)
    assert rows[0]["Average/Non_Bkg_Accuracy"] == 0.5
    assert math.isnan(rows[1]["Average/Non_Bkg_Accuracy"])
    assert rows[1]["Average/mIoU"] == 1.0  # nobody expects or claims anything
    assert measures.average(rows)["Average/Non_Bkg_Accuracy"] == 0.5
    assert measures.compute(predicted, true)["Average/Non_Bkg_Accuracy"] == 0.5


def test_a_plane_without_labels_spoils_no_average():
    true = torch.zeros(1, 3, 2, 2, dtype=torch.int64)
    true[0, 0] = 2
    output = measures.compute(true, true)
    assert math.isnan(output["plane1/Non_Bkg_Accuracy"])
    assert output["Average/Non_Bkg_Accuracy"] == 1.0


def test_what_no_row_has_is_no_number():
    nothing = torch.zeros(1, 3, 2, 2, dtype=torch.int64)
    row = measures.compute(nothing, nothing)
    assert math.isnan(measures.average([row, row])["Average/Non_Bkg_Accuracy"])


def test_counts_are_a_confusion_matrix():
    true = torch.tensor([0, 0, 1, 1, 2, 2]).reshape(1, 1, 2, 3).repeat(1, 3, 1, 1)
    predicted = true.clone()
    predicted[0, 1] = torch.tensor([0, 1, 1, 2, 2, 0]).reshape(2, 3)
    table = measures.counts(predicted, true)
    assert table.dtype == np.int64
    np.testing.assert_array_equal(table[0, 0], [[2, 0, 0], [0, 2, 0], [0, 0, 2]])
    np.testing.assert_array_equal(table[0, 1], [[1, 1, 0], [0, 1, 1], [1, 0, 1]])


def test_shapes_and_classes_are_checked():
    label = torch.zeros(1, 3, 2, 2, dtype=torch.int64)
    with pytest.raises(DataError, match=r"\[1, 3, 2, 2\] against \[2, 3, 2, 2\]"):
        measures.compute(label, label.repeat(2, 1, 1, 1))
    with pytest.raises(DataError, match="true class of 3 was found"):
        measures.compute(label, label + 3)
    with pytest.raises(DataError, match="predicted class of -1 was found"):
        measures.compute(label - 1, label)


PARTICLE = np.dtype([("current_type", "<i2"), ("pdg", "<i4"), ("energy_init", "<f8")])


def particles(*rows):
    return np.array(list(rows), PARTICLE)


def test_the_neutrino_of_an_event():
    assert neutrino_of(particles((0, 14, 1.5), (-1, 13, 0.5))) == Neutrino(1.5, "nu_mu", "CC")
    assert neutrino_of(particles((-1, 13, 0.5), (1, -12, 2.0))) == Neutrino(2.0, "anti nu_e", "NC")
    assert neutrino_of(particles((-1, 16, 2.0))) == Neutrino(2.0, "nu_tau", "unknown")
    assert neutrino_of(particles((-1, 13, 0.5))) is None
    assert neutrino_of(particles()) is None
    assert neutrino_of(None) is None
    assert neutrino_of(np.zeros(1, [("pdg", "i4")])) is None


@reference.needs_sample
def test_the_neutrinos_of_the_real_events():
    data = pytest.importorskip("cosmictagger.data.larcv")
    with data.EventFile(reference.SAMPLE) as file:
        results = [neutrino_of(file.particles(number)) for number in range(len(file))]
    assert [neutrino is not None for neutrino in results] == [True] * 5
    assert results[3] == Neutrino(pytest.approx(1.5036592), "nu_mu", "CC")
    assert results[4] == Neutrino(pytest.approx(0.4947952), "nu_mu", "CC")

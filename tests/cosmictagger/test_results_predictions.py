"""Predictions read back as they were computed, in the layout of the images."""

import h5py
import numpy as np
import pytest
import torch

from cosmictagger.data.larcv import EventFile
from cosmictagger.results.predictions import (
    PREDICTIONS,
    PRODUCERS,
    open_predictions,
    predictions_writer,
    read_scores,
    scored_event,
    scores_of,
)
from helpers.cosmic_reference import SAMPLE, needs_sample

SIZE = (8, 12)


@pytest.fixture
def event():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 3, *SIZE, generator=generator)
    image = torch.rand(3, *SIZE, generator=generator)
    image[image < 0.7] = 0
    image[1] = 0  # a plane without charge
    return image.numpy(), logits


def write(folder, image, logits, event_id=(7, 8, 9)):
    with predictions_writer(folder, SIZE) as writer:
        writer.write(scored_event(image, [scores_of(plane) for plane in logits], event_id))
    return folder / PREDICTIONS


def test_scores_read_back_equal_at_every_pixel_with_charge(tmp_path, event):
    image, logits = event
    expected = torch.stack([plane.softmax(0) for plane in logits]).numpy()
    with open_predictions(write(tmp_path, image, logits)) as file:
        scores = read_scores(file, 0)
        assert file.image_size == SIZE
        np.testing.assert_array_equal(file.event_ids, [[7, 8, 9]])
    seen = image != 0
    for plane in range(3):
        kept, wanted = scores[plane][:, seen[plane]], expected[plane][:, seen[plane]]
        np.testing.assert_array_equal(kept[1:], wanted[1:])
        np.testing.assert_allclose(kept[0], wanted[0], atol=1e-6)
        assert not scores[plane][:, ~seen[plane]].any()


def test_ids_run_down_the_columns_and_rise(tmp_path, event):
    image, logits = event
    with open_predictions(write(tmp_path, image, logits)) as file:
        for producer in PRODUCERS:
            for plane, (ids, values) in enumerate(file.sparse(producer, 0)):
                rows, columns = np.nonzero(image[plane])
                assert (np.diff(ids.astype(np.int64)) > 0).all()
                np.testing.assert_array_equal(ids, np.sort(columns * SIZE[0] + rows))
                assert len(values) == len(ids)


def test_the_class_is_the_one_with_the_highest_score(tmp_path, event):
    image, logits = event
    with open_predictions(write(tmp_path, image, logits)) as file:
        ids, values = file.sparse("class_prediction", 0)[2]
    column, row = np.divmod(ids.astype(np.int64), SIZE[0])
    np.testing.assert_array_equal(values, logits[2].argmax(0).numpy()[row, column])


def test_an_independent_reader_finds_the_layout(tmp_path, event):
    image, logits = event
    with h5py.File(write(tmp_path, image, logits)) as file:
        assert set(file["Data"]) == {f"sparse2d_{name}_group" for name in PRODUCERS}
        group = file["Data/sparse2d_neutrino_prediction_group"]
        assert group["image_meta"]["number_of_voxels"].tolist() == [[12, 8]] * 3
        assert group["voxel_extents"]["N"].tolist() == [int((p != 0).sum()) for p in image]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_scores_are_probabilities_in_float32_whatever_the_precision(event, kind):
    scores = scores_of(event[1][0].to(kind))
    assert scores.cosmic.dtype == scores.neutrino.dtype == np.float32
    total = scores.cosmic + scores.neutrino
    assert (total < 1).all()
    np.testing.assert_allclose(scores.cosmic, event[1][0].softmax(0)[1], atol=0.02)


@needs_sample
def test_real_events_keep_their_voxels(tmp_path):
    from cosmictagger.data.loader import densify

    with EventFile(SAMPLE) as source:
        image = densify(source.sparse("sbndwire", 4), source.image_size)
        logits = torch.tensor([0.0, 1.0, 2.0])[:, None, None].expand(3, *source.image_size)
        with predictions_writer(tmp_path, source.image_size) as writer:
            writer.write(scored_event(image, [scores_of(logits)] * 3, source.event_ids[4]))
        with open_predictions(tmp_path / PREDICTIONS) as file:
            for wanted, result in zip(
                source.sparse("sbndwire", 4), file.sparse("neutrino_prediction", 0), strict=True
            ):
                np.testing.assert_array_equal(result.ids, wanted.ids)
                assert result.values == pytest.approx(float(np.exp(2) / np.exp([0, 1, 2]).sum()))

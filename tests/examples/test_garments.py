"""The drawn pictures: the same everywhere, balanced, kept on disk."""

import hashlib

import numpy as np
import pytest
import torch

from data import CLASSES, Garments
from data.garments import draw_images, draw_labels
from data.silhouettes import GARMENTS

CHECKSUM = "27aad8d7c3693c682dca99ef85ca3a81e3b907c09876d28b123cf52bc369055a"


def test_every_machine_draws_the_same_pictures():
    images = draw_images(40, seed=0, train=True)
    assert hashlib.sha256(images.tobytes()).hexdigest() == CHECKSUM


def test_shapes_types_and_range():
    images = draw_images(30, seed=3, train=True)
    assert images.shape == (30, 28, 28)
    assert images.dtype == np.uint8
    assert images.max() > 200
    # Mostly black around the garment, as in the real set.
    assert np.median(images[:, :2, :2]) < 15


@pytest.mark.parametrize("count", [60_000, 10_000, 25], ids=str)
def test_classes_are_equally_frequent(count):
    frequency = np.bincount(draw_labels(count, seed=0, train=True), minlength=10)
    assert frequency.sum() == count
    assert frequency.max() - frequency.min() <= 1


def test_garments_and_class_names_are_in_the_same_order():
    names = [draw.__name__.replace("_", " ") for draw in GARMENTS]
    assert names == [name.lower().replace("-", " ") for name in CLASSES]


def test_train_test_and_seeds_differ():
    sets = [
        draw_images(10, seed=seed, train=train).tobytes()
        for seed, train in ((0, True), (0, False), (1, True))
    ]
    assert len(set(sets)) == 3


def test_a_small_set_is_part_of_a_larger_one():
    small, large = (draw_images(count, seed=0, train=True) for count in (20, 50))
    assert {image.tobytes() for image in small} <= {image.tobytes() for image in large}


def test_second_load_reads_the_file(tmp_path, monkeypatch):
    first = Garments.load(tmp_path, train=True, count=20)
    monkeypatch.setattr("data.garments.draw_images", None)
    second = Garments.load(tmp_path, train=True, count=20)
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.labels, second.labels)
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"hello"], ids=["empty", "cut", "foreign"])
def test_a_damaged_file_is_drawn_again(tmp_path, content):
    first = Garments.load(tmp_path, train=False, count=10)
    (path,) = tmp_path.rglob("*.npy")
    path.write_bytes(content)
    assert torch.equal(Garments.load(tmp_path, train=False, count=10).images, first.images)
    assert np.load(path).shape == (10, 28, 28)

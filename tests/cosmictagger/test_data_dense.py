"""Dense images: the specification's numbers on the sample, and the exact downsampling."""

import numpy as np
import pytest

from cosmictagger.data.larcv import IMAGE, LABEL, EventFile, Plane
from cosmictagger.data.loader import densify
from cosmictagger.errors import ConfigError
from helpers.cosmic_reference import SAMPLE, needs_sample

from .data_cases import SIZE, random_event

# Section 2 of the specification: share of pixels that are not zero, pixels of each class.
FULL = [
    (0.718, (7835343, 27937, 1040)),
    (0.749, (7838382, 21265, 4673)),
    (0.768, (7833465, 21087, 9768)),
    (0.841, (7830154, 27916, 6250)),
    (0.444, (7856591, 5459, 2270)),
]


def slowly(planes, size, factor, label=False):
    """One voxel after another in the order of the file, as the original does it."""
    out = np.zeros((3, size[0] // factor, size[1] // factor), np.float32)
    for image, plane in zip(out, planes, strict=True):
        for place, value in zip(plane.ids.tolist(), plane.values, strict=True):
            column, row = divmod(place, size[0])
            cell = (row // factor, column // factor)
            image[cell] = max(image[cell], value) if label else np.float32(image[cell] + value)
    return out if label else out / np.float32(factor**2)


@needs_sample
def test_the_sample_has_the_specified_pixels():
    with EventFile(SAMPLE) as file:
        for event, (share, classes) in enumerate(FULL):
            stored = file.sparse(IMAGE, event)
            image = densify(stored, file.image_size)
            assert image.shape == (3, 1280, 2048)
            assert round(100 * float((image > 0).mean()), 3) == share
            total = sum(plane.values.sum(dtype=np.float64) for plane in stored)
            assert image.sum(dtype=np.float64) == pytest.approx(total, rel=1e-12)
            label = densify(file.sparse(LABEL, event), file.image_size, label=True)
            assert tuple(np.bincount(label.ravel()).tolist()) == classes
            assert not label[image == 0].any()


@needs_sample
def test_the_sample_downsampled_has_the_specified_pixels():
    with EventFile(SAMPLE) as file:
        labels = file.sparse(LABEL, 0)
        image = [densify(file.sparse(IMAGE, event), file.image_size, 1) for event in range(5)]
        shares = [100 * float((dense > 0).mean()) for dense in image]
        assert (round(min(shares), 2), round(max(shares), 2)) == (1.34, 1.90)
        for downsample, classes in ((1, [1954267, 11351, 462]), (2, [486177, 5097, 246])):
            label = densify(labels, file.image_size, downsample, label=True)
            assert np.bincount(label.ravel()).tolist() == classes


@needs_sample
@pytest.mark.parametrize("downsample", [1, 3])
def test_the_sample_downsampled_is_exact(downsample):
    with EventFile(SAMPLE) as file:
        planes = [Plane(p.ids[:4000], p.values[:4000]) for p in file.sparse(IMAGE, 1)]
        result = densify(planes, file.image_size, downsample)
        np.testing.assert_array_equal(result, slowly(planes, file.image_size, 1 << downsample))


@pytest.mark.parametrize("downsample", [0, 1, 2, 4])
def test_downsampling_adds_in_the_order_of_the_file(downsample):
    event = random_event(3, filled=0.7)
    image = densify(event.planes[IMAGE], SIZE, downsample)
    expected = slowly(event.planes[IMAGE], SIZE, 1 << downsample)
    assert image.dtype == np.float32
    np.testing.assert_array_equal(image, expected)
    label = densify(event.planes[LABEL], SIZE, downsample, label=True)
    assert label.dtype == np.int64
    np.testing.assert_array_equal(
        label, slowly(event.planes[LABEL], SIZE, 1 << downsample, label=True)
    )


def test_the_order_of_summation_matters():
    # Added from the small end this would be 2^24 + 2; in stored order each one is rounded away.
    plane = Plane(np.arange(3, dtype=np.uint64), np.array([2.0**24, 1.0, 1.0], np.float32))
    empty = Plane(np.zeros(0, np.uint64), np.zeros(0, np.float32))
    image = densify([plane, empty, empty], (4, 4), 2)
    assert image[0, 0, 0] == np.float32(2.0**24 / 16)


def test_a_column_of_an_image_is_a_wire():
    plane = Plane(np.array([5 * 32 + 7], np.uint64), np.array([9.0], np.float32))
    image = densify([plane] * 3, SIZE)
    assert image[:, 7, 5].tolist() == [9.0] * 3
    assert (image > 0).sum() == 3


def test_the_logarithm_is_taken_once_and_after_downsampling():
    planes = random_event(1, filled=0.5).planes[IMAGE]
    expected = np.log1p(densify(planes, SIZE, 1))
    np.testing.assert_array_equal(densify(planes, SIZE, 1, log=True), expected)


def test_sizes_that_do_not_fit():
    planes = random_event(0).planes[IMAGE]
    with pytest.raises(ConfigError, match=r"downsample=6 does not fit.*32 x 64.*fit: 0 to 5"):
        densify(planes, SIZE, 6)
    with pytest.raises(ConfigError, match="downsample=-1"):
        densify(planes, SIZE, -1)

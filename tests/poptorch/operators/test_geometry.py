"""Point clouds against loops over all points."""

import itertools
import math

import pytest
import torch

import poptorch
from helpers.wrapping import inference

POINTS = torch.randn(17, 3, generator=torch.Generator().manual_seed(1))


def farthest(points, count, first):
    chosen = [first]
    while len(chosen) < count:
        nearest = [min((p - points[c]).square().sum() for c in chosen) for p in points]
        chosen.append(max(range(len(points)), key=lambda i: nearest[i]))
    return chosen


@pytest.mark.parametrize("ratio", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("ptr", [[0, 17], [0, 5, 6, 6, 17]], ids=str)
def test_each_point_is_farthest_from_those_before(ptr, ratio):
    expected = []
    for begin, end in itertools.pairwise(ptr):
        count = math.ceil((end - begin) * ratio)
        if count:
            actual = farthest(POINTS[begin:end], count, 0)
            expected += [begin + i for i in actual]
    assert poptorch.fps(POINTS, ptr, ratio).tolist() == expected
    assert inference(lambda p: poptorch.fps(p, ptr, ratio))(POINTS).tolist() == expected


def test_a_random_start_is_drawn_at_every_run():
    wrapped = inference(lambda p: poptorch.fps(p, [0, 9, 17], 0.5, True))
    starts = set()
    for _ in range(20):
        output = wrapped(POINTS).tolist()
        starts.add(output[0])
        assert output[:5] == farthest(POINTS[:9], 5, output[0])
        assert output[5:] == [9 + i for i in farthest(POINTS[9:], 4, output[5] - 9)]
    assert len(starts) > 2


def test_thirty_percent_of_ten_are_three():
    assert len(poptorch.fps(POINTS[:10], [0, 10], 0.3)) == 3
    assert len(poptorch.fps(torch.arange(30.0), [0, 30], 0.1)) == 3


BAD_FPS = [
    (([1], [0, 1]), {}, "src as a tensor, found list"),
    ((POINTS, (0, 17)), {}, "ptr as a list of ints"),
    ((POINTS, [0.0, 17.0]), {}, "ptr as a list of ints"),
    ((POINTS, [0]), {}, "at least 2 boundaries in ptr, found 1"),
    ((POINTS, [0, 9]), {}, r"rise from 0 to the number of points, 17, found \[0, 9\]"),
    ((POINTS, [0, 9, 5, 17]), {}, "rise from 0"),
    ((POINTS, [0, 17]), {"ratio": 1}, "ratio as a float, found int"),
    ((POINTS, [0, 17]), {"ratio": 1.5}, "0 < ratio <= 1, found 1.5"),
    ((POINTS, [0, 17]), {"random_start": 1}, "random_start as a bool, found int"),
]


@pytest.mark.parametrize(("args", "settings", "message"), BAD_FPS)
def test_bad_arguments_of_fps_are_named(args, settings, message):
    with pytest.raises(poptorch.Error, match=message):
        poptorch.fps(*args, **settings)


LEFT, RIGHT = POINTS[:6], POINTS[6:13]
IDS_X, IDS_Y = [0, 0, 1, 1, 2, 3], [0, 1, 0, 1, 0, 2, 2]
BATCHES = {
    "none": (None, None),
    "lists": (IDS_X, IDS_Y),
    "tensors": (torch.tensor(IDS_X), torch.tensor(IDS_Y)),
    "a list and a tensor": (IDS_X, torch.tensor(IDS_Y, dtype=torch.int32)),
    "a tensor and a list": (torch.tensor(IDS_X), IDS_Y),
    "one": ([0] * 6, None),
}


@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
def test_nearest_is_that_of_the_same_batch(batches):
    ids_x, ids_y = (
        [0] * len(rows) if each is None else [int(i) for i in each]
        for each, rows in zip(batches, (LEFT, RIGHT), strict=True)
    )
    expected = []
    for x, own in zip(LEFT, ids_x, strict=True):
        gaps = {j: (x - y).norm() for j, y in enumerate(RIGHT) if ids_y[j] == own}
        expected.append(min(gaps, key=lambda j, g=gaps: g[j]) if gaps else -1)
    assert poptorch.nearest(LEFT, RIGHT, *batches).tolist() == expected
    wrapped = inference(lambda x, y: poptorch.nearest(x, y, *batches))
    assert wrapped(LEFT, RIGHT).tolist() == expected


def test_batches_may_be_inputs_and_rows_numbers():
    wrapped = inference(lambda x, y, a, b: poptorch.nearest(x, y, a, b))
    ids = torch.tensor(IDS_X), torch.tensor(IDS_Y)
    expected = poptorch.nearest(LEFT, RIGHT, *ids)
    assert wrapped(LEFT, RIGHT, *ids).tolist() == expected.tolist()
    assert poptorch.nearest(torch.tensor([0.9]), torch.tensor([0.0, 1.0])).tolist() == [1]


BAD_NEAREST = [
    (([1], RIGHT), "x as a tensor, found list"),
    ((LEFT, 3), "y as a tensor, found int"),
    ((LEFT, RIGHT[:, :2]), "as many features in x as in y, found 3 and 2"),
    ((LEFT, RIGHT, 3), "batch_x as a list or tensor, found int"),
    ((LEFT, RIGHT, [0.5] * 6), "list of ints as batch_x"),
    ((LEFT, RIGHT, IDS_Y, IDS_Y), r"one number per row in batch_x, 6, found shape \[7\]"),
]


@pytest.mark.parametrize(("args", "message"), BAD_NEAREST)
def test_bad_arguments_of_nearest_are_named(args, message):
    with pytest.raises(poptorch.Error, match=message):
        poptorch.nearest(*args)

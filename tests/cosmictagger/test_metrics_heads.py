"""Metrics of event classes and vertices against plain loops."""

import math

import numpy as np
import pytest
import torch

from cosmictagger import measures

SIZE = np.array([[100.0, 200.0], [10.0, 20.0], [1.0, 2.0]])


def case(seed, count=5, sizes=((4, 8), (4, 8), (2, 16)), dtype=torch.float32):
    """Random outputs; the true box has the highest score in about half of the planes."""
    random = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, 4, generator=random)
    label = torch.randint(0, 4, (count,), generator=random)
    vertex = torch.rand(count, 3, 2, generator=random)
    vertex[0, 1] = -1  # outside of the image
    boxes = []
    for plane, size in enumerate(sizes):
        each = torch.rand(count, 3, *size, generator=random)
        for event in range(count):
            row, column = (math.floor(vertex[event, plane, n] * size[n]) for n in range(2))
            if (event + plane) % 2 and row >= 0:
                each[event, 0, row, column] = 2
        boxes.append(each.to(dtype))
    return scores.to(dtype), boxes, label, vertex


def by_loops(scores, boxes, label, vertex):
    """The metrics by their definitions, one event and plane after another."""
    kinds, planes = [], [[] for _ in range(3)]
    for event in range(len(label)):
        best = max(range(4), key=lambda kind: (float(scores[event, kind]), -kind))
        kinds.append(best == int(label[event]))
        for plane, each in enumerate(boxes):
            row, column = (float(v) for v in vertex[event, plane])
            if int(label[event]) == 3 or not (0 <= row < 1 and 0 <= column < 1):
                continue
            height, width = each.shape[2:]
            places = [(h, w) for h in range(height) for w in range(width)]
            found = max(places, key=lambda p: float(each[event, 0, p[0], p[1]]))
            right = found == (math.floor(row * height), math.floor(column * width))
            inside = each[event, 1:, found[0], found[1]]
            off = (
                ((found[0] + float(inside[0])) / height - row) * SIZE[plane][0],
                ((found[1] + float(inside[1])) / width - column) * SIZE[plane][1],
            )
            planes[plane].append((right, math.sqrt(off[0] ** 2 + off[1] ** 2)))
    values = {"Average/EventLabel": np.mean(kinds)}
    for plane, found in enumerate(planes):
        for name, column in (("VertexDetection", 0), ("VertexResolution", 1)):
            values[f"plane{plane}/{name}"] = np.mean([each[column] for each in found])
    for name in measures.VERTEX_NAMES:
        values[f"Average/{name}"] = np.mean([values[f"plane{p}/{name}"] for p in range(3)])
    return values


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_metrics_of_heads_are_those_of_plain_loops(seed, dtype):
    given = case(seed, dtype=dtype)
    values = measures.head_means(measures.of_heads(*given, SIZE))
    expected = by_loops(*given)
    assert set(values) == set(expected)
    for key, value in expected.items():
        assert values[key] == pytest.approx(value, rel=1e-4), key
    assert 0 < values["Average/VertexDetection"] < 1


def test_keys_are_those_of_the_heads_that_are_there():
    scores, boxes, label, vertex = case(1)
    both = measures.head_means(measures.of_heads(scores, boxes, label, vertex, SIZE))
    kind = measures.head_means(measures.of_heads(scores, None, label, vertex, SIZE))
    place = measures.head_means(measures.of_heads(None, boxes, label, vertex, SIZE))
    assert list(kind) == ["Average/EventLabel"]
    assert list(place)[:3] == [
        "Average/VertexDetection",
        "Average/VertexResolution",
        "plane0/VertexDetection",
    ]
    assert both == kind | place
    assert len(place) == 8


def test_a_vertex_that_is_nowhere_counts_nowhere():
    scores, boxes, label, vertex = case(2, count=2)
    label[:] = torch.tensor([3, 1])
    vertex[1, 2] = 1.0
    table = measures.of_heads(scores, boxes, label, vertex, SIZE)
    assert np.isnan(table[0, 1:]).all()
    assert np.isnan(table[1, 5:]).all()
    assert not np.isnan(table[1, 1:5]).any()
    values = measures.head_means(table)
    assert math.isnan(values["plane2/VertexResolution"])
    assert values["Average/VertexResolution"] == pytest.approx(np.mean(table[1, [2, 4]]))


def test_nothing_at_all_gives_rows_of_the_right_width():
    scores, boxes, label, vertex = case(3)
    none = measures.of_heads(scores[:0], [each[:0] for each in boxes], label[:0], vertex[:0], SIZE)
    assert none.shape == (0, 7)
    table = measures.of_heads(scores, boxes, label, vertex, SIZE)
    joined = np.concatenate([none, table, np.full((2, 7), np.nan)])
    assert measures.head_means(joined) == measures.head_means(table)


def test_the_place_found_is_the_box_and_what_the_network_gives_inside():
    boxes = [torch.zeros(1, 3, 4, 8) for _ in range(3)]
    boxes[1][0, :, 2, 5] = torch.tensor([0.9, 0.5, 0.25])
    places = measures.vertices(boxes)
    assert places.shape == (1, 3, 2)
    assert places[0, 1].tolist() == [2.5 / 4, 5.25 / 8]
    assert places[0, 0].tolist() == [0, 0]


def test_losses_have_their_parts_only_where_there_are_any():
    assert measures.losses(torch.tensor(2.0), {}) == {"loss": 2.0}
    parts = {"segmentation": torch.tensor(1.5), "vertex/detection": torch.tensor(0.5)}
    values = measures.losses(torch.tensor(2.0), parts)
    assert values == {"loss": 2.0, "loss/segmentation": 1.5, "loss/vertex/detection": 0.5}
    assert measures.losses(None, parts) == {}

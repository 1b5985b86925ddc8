"""Which elements each process reads."""

from itertools import chain

import pytest

from poptorch._data.samplers import PartitionSampler, owned_range


def samplers(num_elements, combined, processes, drop_last=True, seed=None):
    return [
        PartitionSampler(num_elements, combined, process, processes, drop_last, seed)
        for process in range(processes)
    ]


def epoch(parts):
    return [list(part) for part in parts]


@pytest.mark.parametrize(
    ("num_elements", "combined", "processes", "drop_last", "expected"),
    [
        (12, 2, 3, True, [(0, 4, 0), (4, 4, 0), (8, 4, 0)]),
        (17, 2, 3, True, [(0, 4, 5), (4, 4, 5), (8, 4, 5)]),
        (5, 2, 3, True, [(0, 0, 5), (0, 0, 5), (0, 0, 5)]),
        (11, 2, 3, False, [(0, 4, 0), (4, 4, 0), (8, 3, 0)]),
    ],
)
def test_ranges(num_elements, combined, processes, drop_last, expected):
    results = [
        owned_range(num_elements, combined, process, processes, drop_last)
        for process in range(processes)
    ]
    assert results == expected


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize(("num_elements", "drop_last"), [(24, True), (29, False)])
def test_an_epoch_covers_everything_once(num_elements, drop_last, seed):
    parts = samplers(num_elements, 4, 3, drop_last, seed)
    for _ in range(3):
        assert sorted(chain.from_iterable(epoch(parts))) == list(range(num_elements))


def test_leftovers_get_their_turn_every_second_epoch():
    parts = samplers(11, 2, 2)
    assert epoch(parts) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert epoch(parts) == [[3, 4, 5, 6], [7, 8, 9, 10]]
    assert epoch(parts) == [[0, 1, 2, 3], [4, 5, 6, 7]]

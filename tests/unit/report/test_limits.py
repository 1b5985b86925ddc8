"""What the machine does at most: measured by few processes, and the best of what they found."""

import json

import pytest

from abele.report import limits as module
from abele.report.limits import limits
from abele.report.record import Limits


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    return tmp_path


def measuring(monkeypatch, *rates):
    """Has the next measurements find these many operations and bytes in a second."""
    found = iter(rates)

    def measured():
        rate = next(found)
        return rate, [(size, rate) for size in module._SIZES]

    monkeypatch.setattr(module, "_measured", measured)


def test_the_best_of_a_few_measurements_counts(folder, monkeypatch):
    measuring(monkeypatch, 5.0, 9.0, 7.0, 1.0)
    assert [limits().operations for _ in range(6)] == [5.0, 9.0, 9.0, 9.0, 9.0, 9.0]
    assert limits().bandwidths == tuple((size, 9.0) for size in module._SIZES)


@pytest.mark.parametrize("text", ["", "[]", '{"1": {}}', '{"1": {"operations": -1}}'])
def test_a_file_that_is_damaged_is_measured_again(text, folder, monkeypatch):
    measuring(monkeypatch, 5.0, 6.0)
    limits()
    (file,) = folder.iterdir()
    file.write_text(text)
    assert limits().operations == 6.0
    assert json.loads(file.read_text())["1"]["times"] == 1


def test_this_machine_computes_something(folder):
    found = limits()
    assert found.threads == 1
    assert found.operations > 1e8
    assert all(rate > 1e7 for _, rate in found.bandwidths)


def test_the_least_time_is_the_longer_of_computing_and_moving():
    known = Limits(threads=1, operations=100.0, bandwidths=((10, 50.0), (1000, 5.0)))
    assert known.least(200, 0) == 2.0
    assert known.least(0, 100) == 2.0  # it is in the caches
    assert known.least(0, 1000) == 200.0
    assert known.least(0, 5) == 0.1

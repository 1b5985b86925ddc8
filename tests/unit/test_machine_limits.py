"""What this machine does at best, measured once and kept."""

import dataclasses

import pytest
import torch

from abele import machine_limits
from abele.machine_limits import MachineLimits, measured, of_device

LIMITS = MachineLimits(
    device="cpu",
    threads=1,
    operations_per_s=100.0,
    bytes_per_s=10.0,
    cached_bytes_per_s=20.0,
    new_bytes_per_s=5.0,
    call_s=1.0,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_limits, "cache_folder", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def counted(monkeypatch):
    """Measurements, which take no time here."""
    calls = []

    def measured(device):
        calls.append(device)
        return dataclasses.replace(LIMITS, threads=torch.get_num_threads())

    monkeypatch.setattr(machine_limits, "measured", measured)
    return calls


def test_a_measurement_has_the_order_of_caches_and_memory():
    limits = measured(rounds=2)
    assert limits.threads == torch.get_num_threads()
    assert limits.operations_per_s > 1e8
    assert limits.cached_bytes_per_s > limits.bytes_per_s > 1e8
    assert 0 < limits.call_s < 1e-3


def test_the_second_time_nothing_is_measured(folder, counted):
    assert of_device() == of_device()
    assert len(counted) == 1
    assert len(list(folder.iterdir())) == 1


def test_another_number_of_threads_is_another_measurement(folder, counted):
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert of_device().threads == count
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"device": "cpu"}'])
def test_a_damaged_file_is_measured_again(folder, counted, text):
    of_device()
    (path,) = folder.iterdir()
    path.write_text(text)
    assert of_device().operations_per_s == 100.0
    assert len(counted) == 2


def test_an_operation_takes_the_longer_of_computing_and_moving():
    assert LIMITS.least_s(operations=200, size=10) == 2.0
    assert LIMITS.least_s(operations=200, size=30) == 3.0

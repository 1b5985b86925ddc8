"""What this machine does at best, measured once in a process."""

import pytest
import torch

from abele.report import timing
from abele.report import timing as machine_limits
from abele.report.record import Limits


@pytest.fixture(autouse=True)
def _nothing_measured():
    machine_limits._measured_limits.cache_clear()


def test_a_measurement_has_the_order_of_caches_and_memory():
    limits = timing._limits()
    assert limits.threads == torch.get_num_threads()
    assert limits.operations > 1e8
    first, *_, last = (rate for _, rate in limits.bandwidths)
    assert first > last > 1e8


@pytest.mark.parametrize(("takes_s", "runs"), [(0.001, 40), (0.02, 5)])
def test_the_shortest_of_several_runs_counts(monkeypatch, takes_s, runs):
    now, made = [0.0], []
    monkeypatch.setattr(machine_limits.time, "perf_counter", lambda: now[0])

    def run():
        made.append(None)
        now[0] += takes_s * (1.0 if len(made) == 3 else 1.01)

    assert machine_limits._shortest(run) == pytest.approx(takes_s)
    assert runs - 1 <= len(made) <= runs


def test_each_number_of_threads_is_measured_once(monkeypatch):
    calls = []
    monkeypatch.setattr(machine_limits, "_shortest", lambda run: calls.append(run) or 1.0)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            assert timing._limits().threads == count
    finally:
        torch.set_num_threads(threads)
    assert len(calls) == 3 * (1 + len(machine_limits._SIZES))  # with two threads and with one


def test_one_thread_counts_where_others_wait_for_a_core(monkeypatch):
    monkeypatch.setattr(machine_limits, "_rates", lambda: [5.0 - torch.get_num_threads()] * 5)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        limits = timing._limits()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert {limits.operations, *dict(limits.bandwidths).values()} == {4.0}


def test_the_least_time_is_the_longer_of_computing_and_moving():
    known = Limits(threads=1, operations=100.0, bandwidths=((10, 50.0), (1000, 5.0)))
    assert known.least(200, 0) == 2.0
    assert known.least(0, 100) == 2.0  # it is in the caches
    assert known.least(0, 1000) == 200.0
    assert known.least(0, 5) == 0.1

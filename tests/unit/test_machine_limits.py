"""What this machine does at best: measured by few processes, and the best of what they measured."""

import dataclasses
import itertools
import json

import pytest
import torch

from abele import machine_limits
from abele.machine_limits import MachineLimits, measured, of_device
from abele.report.record import Limits


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_limits, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(machine_limits, "_measured_here", {})
    return tmp_path


def pairs_of(rate):
    return tuple((size, rate) for size in machine_limits._SIZES)


def limits_of(device, rate):
    return MachineLimits(
        device=str(device),
        threads=torch.get_num_threads(),
        operations_per_s=rate,
        bandwidths=pairs_of(rate),
    )


def measuring(monkeypatch, *rates):
    """Has the next measurements yield so many operations and bytes in a second."""
    rate = iter(rates)

    def measured(device):
        return limits_of(device, next(rate))

    monkeypatch.setattr(machine_limits, "measured", measured)


def test_a_measurement_has_the_order_of_caches_and_memory():
    limits = measured()
    assert limits.threads == torch.get_num_threads()
    assert limits.operations_per_s > 1e8
    first, *_, last = (rate for _, rate in limits.bandwidths)
    assert first > last > 1e8


def test_several_threads_that_wait_for_cores_count_as_one_at_least(monkeypatch):
    def on_a_busy_machine(device):
        return limits_of(device, 9.0 if torch.get_num_threads() == 1 else 2.0)

    monkeypatch.setattr(machine_limits, "_measured", on_a_busy_machine)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        limits = measured()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert (limits.threads, limits.times, limits.operations_per_s) == (2, 1, 9.0)
    assert limits.bandwidths == pairs_of(9.0)


@pytest.mark.parametrize(("takes_s", "runs"), [(0.001, 10), (0.004, 5), (0.025, 2)])
def test_runs_that_take_long_are_few(monkeypatch, takes_s, runs):
    now, made = [0.0], []
    for clock in ("perf_counter", "thread_time"):
        monkeypatch.setattr(machine_limits.time, clock, lambda: now[0])

    def run():
        made.append(None)
        now[0] += takes_s

    shortest = machine_limits._shortest(run, torch.device("cpu"), 0.00999)
    assert shortest == pytest.approx(takes_s)
    assert len(made) == runs


@pytest.mark.parametrize(("threads", "shortest"), [(1, 0.003), (2, 0.01)])
def test_what_interrupts_the_only_thread_does_not_count(monkeypatch, threads, shortest):
    clocks = {"perf_counter": [0.0, 0.01], "thread_time": [0.0, 0.003]}
    for name, clock in clocks.items():
        monkeypatch.setattr(machine_limits.time, name, lambda clock=clock: clock[0])

    def run():
        for clock in clocks.values():
            clock[0] += clock[1]

    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    took = machine_limits._shortest(run, torch.device("cpu"), 0.05)
    assert took == pytest.approx(shortest)


def test_times_of_a_thread_that_a_host_has_shortened_do_not_count(monkeypatch):
    now, times = [0.0, 0.0], itertools.cycle([0.003, 0.0, 0.003, 0.003, 0.003])
    monkeypatch.setattr(machine_limits.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(machine_limits.time, "thread_time", lambda: now[1])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)

    def run():
        now[0] += 0.004
        now[1] += next(times)

    took = machine_limits._shortest(run, torch.device("cpu"), 0.05)
    assert took == pytest.approx(0.003)


def in_a_new_process():
    machine_limits._measured_here.clear()
    return of_device()


def test_a_process_measures_once(folder, monkeypatch):
    measuring(monkeypatch, 5.0, 9.0)
    assert [of_device().operations_per_s for _ in range(3)] == [5.0] * 3
    assert in_a_new_process().operations_per_s == 9.0


def test_a_process_measures_once_where_nothing_can_be_kept(folder, monkeypatch):
    measuring(monkeypatch, 5.0)
    folder.rmdir()
    folder.write_text("a file in the place of the folder")
    assert [of_device().operations_per_s for _ in range(3)] == [5.0] * 3


def test_the_best_of_a_few_measurements_counts(folder, monkeypatch):
    measuring(monkeypatch, 5.0, 9.0, 7.0, 1.0)
    rates = [in_a_new_process().operations_per_s for _ in range(6)]
    assert rates == [5.0, 9.0, 9.0, 9.0, 9.0, 9.0]
    assert of_device().bandwidths == pairs_of(9.0)
    assert len(list(folder.iterdir())) == 1


def test_another_number_of_threads_is_another_measurement(folder, monkeypatch):
    measuring(monkeypatch, 5.0, 6.0)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert of_device().threads == count
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"device": "cpu"}', '{"bandwidths": [[1, 2.0]], "threads": 1}']
)
def test_a_damaged_file_is_measured_again(text, folder, monkeypatch):
    measuring(monkeypatch, 5.0, 6.0)
    of_device()
    (path,) = folder.iterdir()
    path.write_text(text)
    assert in_a_new_process().operations_per_s == 6.0
    assert json.loads(path.read_text())["times"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"operations_per_s": -1.0},
        {"times": 0},
        {"bandwidths": ()},
        {"bandwidths": pairs_of(-1.0)},
    ],
)
def test_numbers_that_cannot_be_are_measured_again(change, folder, monkeypatch):
    measuring(monkeypatch, 5.0, 6.0)
    limits = of_device()
    (path,) = folder.iterdir()
    path.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(limits, **change))))
    assert in_a_new_process().operations_per_s == 6.0


def test_the_least_time_is_the_longer_of_computing_and_moving():
    known = Limits(threads=1, operations=100.0, bandwidths=((10, 50.0), (1000, 5.0)))
    assert known.least(200, 0) == 2.0
    assert known.least(0, 100) == 2.0  # it is in the caches
    assert known.least(0, 1000) == 200.0
    assert known.least(0, 5) == 0.1

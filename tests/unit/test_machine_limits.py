"""What this machine does at best: measured by few processes, and the best of what they measured."""

import dataclasses
import itertools
import json

import pytest
import torch

from abele import machine_limits
from abele.machine_limits import MachineLimits, Rates, measured, of_device
from abele.report.kernel_times import Limits


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_limits, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(machine_limits, "_measured_here", {})
    return tmp_path


TYPES = ("float32", "bfloat16", "float16", "float64")


def rates_of(rate):
    pairs = tuple((size, rate) for size in machine_limits._SIZES)
    return Rates(operations_per_s=rate, turned_per_s=2 * rate, bandwidths=pairs)


def measuring(monkeypatch, *rates):
    """Has the next measurements yield so many operations and bytes in a second."""
    rate = iter(rates)

    def measured(device, types):
        now = next(rate)
        return MachineLimits(
            device=str(device),
            threads=torch.get_num_threads(),
            rates={name: rates_of(now) for name in TYPES},
            exponentials_per_s=now,
            call_s=1 / now,
        )

    monkeypatch.setattr(machine_limits, "measured", measured)


def test_a_measurement_has_the_order_of_caches_and_memory():
    limits = measured()
    assert limits.threads == torch.get_num_threads()
    rates = limits.of_type(torch.float32)
    assert rates.operations_per_s > 1e8
    assert rates.bytes_per_s(0) > rates.bytes_per_s(2**30) > 1e8
    assert limits.exponentials_per_s > 1e7
    assert 0 < limits.call_s < 1e-3


def test_several_threads_that_wait_for_cores_count_as_one_at_least(monkeypatch):
    def on_a_busy_machine(device, types):
        rate = 9.0 if torch.get_num_threads() == 1 else 2.0
        return MachineLimits(
            device=str(device),
            threads=torch.get_num_threads(),
            rates={name: rates_of(rate) for name in TYPES},
            exponentials_per_s=rate,
            call_s=1 / rate,
        )

    monkeypatch.setattr(machine_limits, "_measured", on_a_busy_machine)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        limits = measured()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert (limits.threads, limits.times, limits.call_s) == (2, 1, 1 / 9)
    assert limits.rates == {name: rates_of(9.0) for name in TYPES}


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


def test_every_type_is_measured_and_others_count_as_float32():
    limits = measured()
    assert set(limits.rates) == set(TYPES)
    assert all(rates.usable() for rates in limits.rates.values())
    assert limits.of_type(torch.float16) is limits.rates["float16"]
    assert limits.of_type(torch.int64) is limits.rates["float32"]


def test_only_types_that_matter_are_measured(folder):
    limits = of_device(types={torch.float16, torch.int64})
    assert set(limits.rates) == {"float32", "float16"}
    machine_limits._measured_here.clear()
    assert of_device(types={torch.float16}).times == 2  # those of before count
    assert of_device(types=()).times == 1
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    ("left", "right", "columns", "rate"),
    [
        (False, False, 128, 8.0),
        (False, False, 512, 4.0),  # halfway, by doublings
        (False, False, 4096, 2.0),
        (True, False, 4096, 5.0),
        (False, True, 4096, 9.0),
        (True, True, 4096, 8.0),
    ],
)
def test_a_products_rate_depends_on_how_its_matrices_lie(left, right, columns, rate):
    rates = dataclasses.replace(
        rates_of(8.0), turned_per_s=9.0, left_turned_per_s=5.0, wide_per_s=2.0
    )
    found = rates.products_per_s(left_turned=left, turned=right, columns=columns)
    assert found == pytest.approx(rate)


def test_what_was_not_measured_of_a_product_is_that_of_plain_matrices():
    rates = rates_of(8.0)
    assert rates.products_per_s(left_turned=True, turned=False, columns=4096) == 8.0
    assert rates.products_per_s(left_turned=False, turned=False, columns=4096) == 8.0


def in_a_new_process():
    machine_limits._measured_here.clear()
    return of_device()


def test_a_process_measures_once(folder, monkeypatch):
    measuring(monkeypatch, 5.0, 9.0)
    assert [of_device().call_s for _ in range(3)] == [1 / 5] * 3
    assert in_a_new_process().call_s == 1 / 9


def test_a_process_measures_once_where_nothing_can_be_kept(folder, monkeypatch):
    measuring(monkeypatch, 5.0)
    folder.rmdir()
    folder.write_text("a file in the place of the folder")
    assert [of_device().call_s for _ in range(3)] == [1 / 5] * 3


def test_the_best_of_a_few_measurements_counts(folder, monkeypatch):
    measuring(monkeypatch, 5.0, 9.0, 7.0, 1.0)
    rates = [in_a_new_process().exponentials_per_s for _ in range(6)]
    assert rates == [5.0, 9.0, 9.0, 9.0, 9.0, 9.0]
    assert of_device().rates == {name: rates_of(9.0) for name in TYPES}
    assert of_device().call_s == 1 / 9
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
    assert in_a_new_process().exponentials_per_s == 6.0
    assert json.loads(path.read_text())["times"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"exponentials_per_s": -1.0},
        {"call_s": 0.0},
        {"times": 0},
        {"rates": {}},
        {"rates": {name: rates_of(-1.0) for name in TYPES}},
    ],
)
def test_numbers_that_cannot_be_are_measured_again(change, folder, monkeypatch):
    measuring(monkeypatch, 5.0, 6.0)
    limits = of_device()
    (path,) = folder.iterdir()
    path.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(limits, **change))))
    assert in_a_new_process().exponentials_per_s == 6.0


def test_bytes_that_caches_hold_go_through_faster():
    pairs = ((10, 50.0), (1000, 5.0))
    limits = Rates(operations_per_s=100.0, turned_per_s=100.0, bandwidths=pairs)
    assert [limits.bytes_per_s(size) for size in (0, 100, 1000, 5000)] == [50.0, 50.0, 5.0, 5.0]


def test_the_least_time_is_the_longer_of_computing_and_moving():
    known = Limits(threads=1, operations=100.0, bandwidths=((10, 50.0), (1000, 5.0)))
    assert known.least(200, 0) == 2.0
    assert known.least(0, 100) == 2.0  # it is in the caches
    assert known.least(0, 1000) == 200.0
    assert known.least(0, 5) == 0.1

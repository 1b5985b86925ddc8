"""Waiting threads sleep while other processes use the cores: when, and by what."""

import os
import threading
import time

import pytest
import torch
from torch import nn

import poptorch
from abele.runtime import busy_cores
from abele.runtime.busy_cores import BusyCores

SECOND = 1_000_000_000


@pytest.fixture
def watch(monkeypatch):
    """A function that looks a second later, in which threads waited for cores so long.

    It returns whether waiting threads sleep then.
    """
    starts = []

    def start():
        starts.append(True)
        return starts.clear

    monkeypatch.setattr(busy_cores, "_sleeping_threads", start)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    made, total = BusyCores(), [5 * SECOND, 7 * SECOND]

    def look(seconds):
        total[0] += SECOND
        total[1] += int(seconds * SECOND)
        monkeypatch.setattr(busy_cores, "_waited_ns", lambda: total[1])
        made.look(total[0])
        assert made.due_ns == total[0] + SECOND // 2
        assert len(starts) < 2
        return bool(starts)

    look(0)
    return look


def test_threads_sleep_from_when_they_wait_for_cores_until_they_do_not(watch):
    waits = (0.1, 0.3, 0.3, 0.1, 0.01, 0.1)
    assert [watch(each) for each in waits] == [False, True, True, True, False, False]


def test_a_single_thread_waits_for_no_other(watch, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert not watch(0.9)


def test_one_thread_looks_at_a_time(monkeypatch):
    looks, made = [], BusyCores()

    def waited():
        looks.append(1)
        made.look(2)  # as another thread would
        return 0

    monkeypatch.setattr(busy_cores, "_waited_ns", waited)
    made.look(1)
    made.look(3)
    assert len(looks) == 2


def test_without_the_systems_times_there_is_no_further_look(monkeypatch, tmp_path):
    monkeypatch.setattr(busy_cores, "_TASKS", tmp_path / "task")
    watched = BusyCores()
    watched.look(7)
    assert watched.due_ns > 1 << 60


def test_times_of_all_threads_count_and_one_may_end_meanwhile(monkeypatch, tmp_path):
    monkeypatch.setattr(busy_cores, "_TASKS", tmp_path)
    for name, text in {"1": "9 40 3", "2": "8 2 1", "3": ""}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(text)
    (tmp_path / "4").mkdir()
    assert busy_cores._waited_ns() == 42


def threads_of_process():
    return len(os.listdir("/proc/self/task"))


def until(condition):
    """Wait until a condition holds, at most ten seconds; return whether it does."""
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_there_are_more_threads_of_openmp_than_cores_until_they_end():
    # Of OpenMP's runtime, only threads that exist count.
    before = threads_of_process()
    release = busy_cores._sleeping_threads()
    if release is None:
        pytest.skip("this torch has no libgomp.so.1")
    assert until(lambda: threads_of_process() >= before + 1 + busy_cores._CORES)
    release()
    assert until(lambda: threads_of_process() <= before)
    assert "abele-busy-cores" not in {each.name for each in threading.enumerate()}


def test_calls_look_when_it_is_due(monkeypatch):
    looks = []
    monkeypatch.setattr(busy_cores.cores, "look", looks.append)
    wrapped = poptorch.inferenceModel(nn.Linear(2, 1))
    for due in (0, 1 << 62):
        monkeypatch.setattr(busy_cores.cores, "due_ns", due)
        wrapped(torch.ones(1, 2))
    assert len(looks) == 1

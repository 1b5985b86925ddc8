"""Waiting threads sleep while other processes use the cores: when, and by what."""

import os
import threading
import time

import pytest
import torch
from torch import nn

import poptorch
from abele import processor
from abele.kernels import threads
from abele.runtime import busy_cores
from abele.runtime.busy_cores import BusyCores

SECOND = 1_000_000_000


@pytest.fixture
def watch(monkeypatch):
    """A function that looks a second later, in which threads waited and cores were idle so long.

    Threads worked all the time unless it is told otherwise. It returns how many of four threads
    work; with fewer than all, waiting ones sleep.
    """
    starts = []

    def start():
        starts.append(True)
        return starts.clear

    monkeypatch.setattr(busy_cores, "_sleeping_threads", start)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    threads.limit(threads.ALL)  # the watch of this process may have set another
    made, total = BusyCores(), [5.0, 7.0, 9.0, 3.0]

    def look(waited, idle=0.0, worked=4.0):
        total[:] = total[0] + 1, total[1] + waited, total[2] + idle, total[3] + worked
        monkeypatch.setattr(time, "process_time", lambda: total[3])
        monkeypatch.setattr(busy_cores, "_waited_s", lambda: total[1])
        monkeypatch.setattr(busy_cores, "_idle_s", lambda: total[2])
        made.look(int(total[0] * SECOND))
        assert made.due_ns == int(total[0] * SECOND) + SECOND // 2
        working = min(threads._limit, 4)
        assert len(starts) == (working < 4)
        return working

    look(0)
    yield look
    threads.limit(threads.ALL)


def test_fewer_threads_work_while_they_wait_for_cores(watch):
    looks = ((0.1, 0), (0.3, 0), (1.6, 0), (0.9, 0), (0.1, 0.5), (0.1, 1.2), (0.0, 2.4))
    assert [watch(*each) for each in looks] == [4, 3, 1, 1, 1, 2, 4]


def test_cores_that_were_idle_while_this_process_worked_get_threads(watch):
    assert watch(3.0) == 1
    assert watch(0.0, idle=0.4, worked=0.6) == 1  # one of them, two thirds of the time
    assert watch(0.0, idle=0.5, worked=0.5) == 2
    assert watch(0.0, idle=0.0, worked=0.0) == 2


def test_waiting_threads_are_stopped_although_a_core_was_idle(watch):
    assert watch(2.0, 1.0) == 2


@pytest.mark.parametrize(("quota", "working"), [(1.5, 2), (0.5, 1), (8.0, 4)])
def test_a_container_gets_no_more_threads_than_its_time(quota, working, watch, monkeypatch):
    monkeypatch.setattr(processor, "quota", lambda: quota)
    assert [watch(0.0, idle) for idle in (0, 3)] == [working, working]


def test_a_single_thread_works_on(watch, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    watch(0.9)
    assert threads._limit == threads.ALL


def test_one_thread_looks_at_a_time(monkeypatch):
    looks, made = [], BusyCores()

    def waited():
        looks.append(1)
        made.look(2)  # as another thread would
        return 0

    monkeypatch.setattr(busy_cores, "_waited_s", waited)
    made.look(1)
    made.look(3)
    assert len(looks) == 2


@pytest.mark.parametrize("name", ["_TASKS", "_STATISTICS"])
def test_without_the_systems_times_there_is_no_further_look(name, monkeypatch, tmp_path):
    monkeypatch.setattr(busy_cores, name, tmp_path / "missing")
    watched = BusyCores()
    watched.look(7)
    assert watched.due_ns > 1 << 60


def test_times_of_all_threads_count_and_one_may_end_meanwhile(monkeypatch, tmp_path):
    monkeypatch.setattr(busy_cores, "_TASKS", tmp_path)
    for name, text in {"1": "9 40 3", "2": "8 2 1", "3": ""}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(text)
    (tmp_path / "4").mkdir()
    assert busy_cores._waited_s() == 42e-9


def test_cores_of_this_process_count_as_idle(monkeypatch, tmp_path):
    path = tmp_path / "stat"
    path.write_text(
        "cpu 0 0 0 999\ncpu0 1 1 1 20 5 1\ncpu1 1 1 1 500 0 1\ncpu2 0 0 0 7 0 1\nintr 3\n"
    )
    monkeypatch.setattr(busy_cores, "_STATISTICS", path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    assert busy_cores._idle_s() * os.sysconf("SC_CLK_TCK") == pytest.approx(32)
    path.write_text("cpu 0 0 0 999\n")
    assert busy_cores._idle_s() is None


def threads_of_process():
    return len(os.listdir("/proc/self/task"))


def holders():
    """How many threads hold those of OpenMP; the watch of this process may have one."""
    return [each.name for each in threading.enumerate()].count("abele-busy-cores")


def until(condition):
    """Wait until a condition holds, at most ten seconds; return whether it does."""
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_there_are_more_threads_of_openmp_than_cores_until_they_end():
    # Of OpenMP's runtime, only threads that exist count.
    before, held = threads_of_process(), holders()
    release = busy_cores._sleeping_threads()
    if release is None:
        pytest.skip("this torch has no libgomp.so.1")
    assert until(lambda: threads_of_process() >= before + 1 + busy_cores._CORES)
    release()
    assert until(lambda: threads_of_process() <= before)
    assert holders() == held


def test_calls_look_when_it_is_due(monkeypatch):
    looks = []
    monkeypatch.setattr(busy_cores.cores, "look", looks.append)
    wrapped = poptorch.inferenceModel(nn.Linear(2, 1))
    for due in (0, 1 << 62):
        monkeypatch.setattr(busy_cores.cores, "due_ns", due)
        wrapped(torch.ones(1, 2))
    assert len(looks) == 1

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

STAT = """\
cpu  1000 0 500 9000 10 5 5 77 0 0
cpu0 100 20 50 4000 5 2 3 7 9 9
cpu1 900 0 450 5000 5 3 2 70 9 9
intr 12345 6 7
"""


def watch(monkeypatch, *, cores, threads, others):
    """A watch that has looked twice within a second, in which other processes used some cores."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(busy_cores, "_sleeping_threads", lambda: watched.clear)
    watched, made = set(), BusyCores()
    for now, used in (10.0, 100.0), (11.0, 101.5 + others):  # 1.5 are of this process
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        monkeypatch.setattr(time, "process_time", lambda now=now: 1.5 * now)
        monkeypatch.setattr(busy_cores, "_used", lambda used=used: (cores, used))
        made.look(0)
    return made


@pytest.mark.parametrize(
    ("cores", "threads", "others", "sleeps"),
    [
        *((2, 2, 0.1, False), (2, 2, 0.3, True), (2, 1, 2.0, False)),
        *((16, 2, 13.9, False), (16, 2, 14.4, True), (2, 4, 0.1, False), (2, 4, 0.5, True)),
    ],
)
def test_threads_sleep_where_cores_are_used_twice(monkeypatch, cores, threads, others, sleeps):
    assert watch(monkeypatch, cores=cores, threads=threads, others=others).sleeps is sleeps


def test_threads_spin_again_once_cores_are_idle(monkeypatch):
    watched = watch(monkeypatch, cores=2, threads=2, others=1.0)
    assert watched.sleeps
    monkeypatch.setattr(time, "monotonic", lambda: 12.0)
    watched.look(0)  # nobody has worked
    assert not watched.sleeps


def test_without_counts_of_cores_there_is_no_further_look(monkeypatch, tmp_path):
    monkeypatch.setattr(busy_cores, "_COUNTS", tmp_path / "stat")
    watched = BusyCores()
    watched.look(7)
    assert watched.due_ns > 1 << 60


@pytest.mark.parametrize(("own", "cores", "ticks"), [({0}, 1, 175), ({0, 1}, 2, 175 + 1355)])
def test_cores_of_others_do_not_count(monkeypatch, tmp_path, own, cores, ticks):
    (tmp_path / "stat").write_text(STAT)
    monkeypatch.setattr(busy_cores, "_COUNTS", tmp_path / "stat")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: own)
    assert busy_cores._used() == (cores, ticks / busy_cores._TICKS)


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

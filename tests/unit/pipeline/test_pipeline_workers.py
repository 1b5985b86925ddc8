"""The threads of a pipeline: they start, compute with their share, end, and hide no error."""

import contextvars
import gc
import os
import signal
import threading
import time

import pytest
import torch

from abele.pipeline.running import WorkerPool, share_of_cores

DEADLINE = 60


def gone(members):
    """Whether the workers end in time; a thread that was told to needs a moment."""
    for member in members:
        member.join(DEADLINE)
    return not any(member.is_alive() for member in members)


def threads_of(crew):
    return [] if crew._pool is None else list(crew._pool._threads)


@pytest.fixture
def crew():
    made = WorkerPool(2, 1)
    yield made
    members = threads_of(made)
    made.close()
    assert gone(members)


def never():
    raise AssertionError("nothing was to be stopped")


def test_each_worker_does_one_job_at_the_same_time_as_the_others(crew):
    # Each waits for the other, so one after the other would never end.
    together = threading.Barrier(2, timeout=DEADLINE)
    names = []

    def job():
        together.wait()
        names.append(threading.current_thread().name)

    crew.run([job, job], never)
    assert sorted(names) == ["abele-stage_0", "abele-stage_1"]


def test_workers_have_threads_of_their_own_and_the_caller_keeps_his():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    crew = WorkerPool(2, 1)
    results = []
    try:
        crew.run([lambda: results.append(torch.get_num_threads())] * 2, never)
        assert results == [1, 1]
        assert torch.get_num_threads() == 2
        assert share_of_cores(10_000) == 1
    finally:
        crew.close()
        torch.set_num_threads(before)


def test_the_callers_context_is_that_of_the_jobs(crew):
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(5)
    results = []
    crew.run([lambda: results.append(variable.get())] * 2, never)
    assert results == [5, 5]


def test_an_error_is_raised_as_it_is_and_workers_go_on(crew):
    error = KeyError("mine")

    def fail():
        raise error

    for _ in range(2):
        with pytest.raises(KeyError) as caught:
            crew.run([fail, lambda: None], never)
        assert caught.value is error
    crew.run([lambda: None] * 2, never)


@pytest.fixture
def interruptible():
    """Whoever starts tests in the background has them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_stops_the_jobs_and_waits_for_them(crew):
    stopped, ended = threading.Event(), threading.Event()
    begun = threading.Event()

    def work():
        begun.set()
        stopped.wait(DEADLINE)
        ended.set()

    def interrupt():
        begun.wait(DEADLINE)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        crew.run([work, interrupt], stopped.set)
    assert ended.is_set()
    crew.run([lambda: None] * 2, never)


def test_an_interrupted_start_leaves_no_worker_waiting(crew, monkeypatch):
    start, started = threading.Thread.start, []

    def interrupted(self):
        if started:
            raise KeyboardInterrupt
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        crew.run([lambda: None] * 2, never)
    monkeypatch.undo()
    test_each_worker_does_one_job_at_the_same_time_as_the_others(crew)
    gc.collect()
    assert gone(started)


def test_interruptions_at_any_time_leave_workers_that_work(crew):
    """As Ctrl-C between two lines of whatever the caller waits in."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    def run_until(seconds):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        while True:
            crew.run([lambda: None] * 2, lambda: None)

    crew.run([lambda: None] * 2, never)
    before = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()  # what it calls would lose an interruption
    try:
        for i in range(1000):
            with pytest.raises(KeyboardInterrupt):
                run_until(2e-5 * (1 + i % 25))
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    test_each_worker_does_one_job_at_the_same_time_as_the_others(crew)


def test_workers_end_with_their_crew():
    crew = WorkerPool(3, 1)
    crew.run([lambda: None] * 3, never)
    members = threads_of(crew)
    assert len(members) == 3
    del crew
    gc.collect()
    assert gone(members)


def test_a_closed_crew_can_run_again(crew):
    crew.run([lambda: None] * 2, never)
    members = threads_of(crew)
    crew.close()
    assert gone(members)
    crew.close()
    crew.run([lambda: None] * 2, never)
    assert all(member.is_alive() for member in threads_of(crew))


def test_callers_in_several_threads_take_turns(crew):
    active, most = [], []

    def job():
        active.append(1)
        most.append(len(active))
        time.sleep(0.001)
        active.pop()

    callers = [
        threading.Thread(target=lambda: [crew.run([job, job], never) for _ in range(5)])
        for _ in range(3)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(DEADLINE)
    assert not any(caller.is_alive() for caller in callers)
    assert max(most) <= 2

"""The line at the end of a run: what bounded it, and what free input would give."""

import subprocess

import pytest
import torch

import poptorch
from helpers import warm_python
from poptorch._data import waiting
from poptorch._data.waiting import LoopAround, Waiting

MS = 10**6


def looped(batches, work_ms, wait_ms, steps=1):
    """The times of an epoch: work on each batch, then waiting for the next."""
    times, now = Waiting(steps, show=True), 0
    times.begin_epoch()
    for _ in range(batches):
        times.note(now, now + wait_ms * MS)
        now += (wait_ms + work_ms) * MS
    return times


def said(times):
    loop = times.loop()
    return None if loop is None else loop.sentence()


@pytest.fixture(autouse=True)
def _forget():
    yield
    waiting.begin_again()


def test_a_loop_that_waits_longer_than_it_works_is_input_bound():
    times = looped(202, work_ms=4, wait_ms=6)
    assert (times.batches, times.loop_ns, times.waiting_ns) == (200, 2000 * MS, 1200 * MS)
    assert said(times) == (
        "input-bound: 100 steps/s, of which waiting for batches took 60%; with free input 250 "
        "steps/s"
    )


def test_steps_are_those_of_the_device():
    assert said(looped(202, work_ms=9, wait_ms=1, steps=8)) == (
        "compute-bound: 800 steps/s, of which waiting for batches took 10%; with free input 889 "
        "steps/s"
    )


def test_short_loops_have_no_rate():
    assert said(looped(90, work_ms=50, wait_ms=50)) is None
    assert said(looped(300, work_ms=1, wait_ms=1)) is None


def test_the_first_batch_of_an_epoch_and_what_lies_between_epochs_do_not_count():
    times = looped(101, work_ms=10, wait_ms=10)
    times.begin_epoch()
    times.note(10**15, 2 * 10**15)  # an hour of testing, and a start of processes
    times.note(3 * 10**15, 4 * 10**15)  # the first call after it
    assert times.loop_ns == 99 * 20 * MS


def test_times_of_programs_that_no_longer_run_are_forgotten():
    times = looped(202, work_ms=400, wait_ms=6)
    waiting.begin_again()
    times.note(0, 1)
    times.note(10 * MS, 16 * MS)
    assert (times.batches, times.loop_ns) == (0, 0)
    times.note(20 * MS, 26 * MS)
    assert (times.batches, times.loop_ns, times.waiting_ns) == (1, 10 * MS, 6 * MS)


def test_the_loop_around_somebody_is_the_longest_in_which_it_was_called():
    around = LoopAround()
    waits = around()
    begin = waits.ns
    training = looped(202, work_ms=4, wait_ms=6)
    assert waits.ns - begin == 202 * 6 * MS
    assert around() is waits
    looped(10, work_ms=4, wait_ms=6)  # validation, with a loader of its own
    around()
    assert around.loop() == training.loop()
    waiting.begin_again()
    assert around.loop() is None


LOOP = """
import time, torch, poptorch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 110

    def __getitem__(self, index):
        time.sleep(0.011)
        return torch.ones(2)

options = poptorch.Options().showCompilationProgressBar({show})
for loader in (poptorch.DataLoader(options, Slow()), poptorch.DataLoader(options, Slow(), 50)):
    for batch in loader:
        pass
print("end")
"""


@pytest.mark.parametrize("show", [True, False])
def test_one_line_at_the_end_of_the_process(show):
    done = subprocess.run(
        [warm_python.python(), "-c", LOOP.format(show=show)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stderr.splitlines()
    assert done.stdout == "end\n"
    assert len(lines) == show, done.stderr
    if show:
        assert lines[0].startswith("abele: input-bound: ")
        assert "Slow.__getitem__ does more than to index tensors" in lines[0]


def test_a_loader_tells_of_its_batches():
    numbers = torch.utils.data.TensorDataset(torch.arange(8))
    loader = poptorch.DataLoader(poptorch.Options().deviceIterations(2), numbers)
    assert len(list(loader)) == 4
    assert loader._waiting.batches == 2
    assert 0 < loader._waiting.waiting_ns <= loader._waiting.loop_ns

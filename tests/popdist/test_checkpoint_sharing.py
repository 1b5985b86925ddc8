"""Parts of instances come together, and all of them learn how it went."""

import threading

import pytest

from popdist import checkpoint
from popdist.checkpoint import CheckpointError


class Meeting:
    """Threads instead of processes: the exchanges of `abele.collectives` that are used."""

    def __init__(self, rank, size, shared, barrier):
        self.rank, self.size, self._shared, self._barrier = rank, size, shared, barrier

    def _all(self, value):
        self._shared[self.rank] = value
        self._barrier.wait(60)
        results = [self._shared[rank] for rank in range(self.size)]
        self._barrier.wait(60)
        return results

    def gather(self, topic, text):
        return self._all(text)

    def all_reduce(self, values):
        values.copy_(sum(self._all(values.clone())))

    def broadcast(self, values):
        values.copy_(self._all(values.clone())[0])


def together(function, size=3):
    shared, barrier, results = {}, threading.Barrier(size), {}

    def run(rank):
        instances = checkpoint.Instances.__new__(checkpoint.Instances)
        instances._collective = Meeting(rank, size, shared, barrier)
        instances.index, instances.number = rank, size
        try:
            results[rank] = function(instances)
        except CheckpointError as problem:
            results[rank] = str(problem)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[rank] for rank in range(size)]


def test_parts_of_different_lengths_arrive_in_order():
    parts = [b"one\0", bytes(range(256)), b"3"]
    assert together(lambda instances: instances.bring(parts[instances.index])) == [parts] * 3


@pytest.mark.parametrize("data", [b"what was read", b"", None])
def test_what_the_first_has_read_reaches_all(data):
    def function(instances):
        return instances.from_first(data if instances.index == 0 else None)

    assert together(function) == [data] * 3


def test_when_the_first_fails_all_fail_with_its_words():
    def function(instances):
        return instances.from_first(None, "the disk is full" if instances.index == 0 else "")

    assert together(function) == ["the disk is full"] * 3

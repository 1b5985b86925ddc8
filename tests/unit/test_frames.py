"""Room for frames: no depth at which calls take memory from the system and give it back."""

import resource

import pytest

from abele import cpython

CALLS, DEPTHS = 300, 200


def nothing():
    a = b = c = d = e = None
    return a, b, c, d, e


def faults_of_calls():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        nothing()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def worst(depth):
    """The most page faults that so many calls take at any depth up to this one."""
    return faults_of_calls() if not depth else max(faults_of_calls(), worst(depth - 1))


def test_calls_fault_at_no_depth():
    worst(DEPTHS)  # what is touched for the first time faults once
    assert cpython.with_room(worst)(DEPTHS) < CALLS // 2


def test_without_room_there_is_such_a_depth():
    if worst(DEPTHS) < CALLS // 2:
        pytest.skip("this Python keeps its pieces")


def test_arguments_results_and_names_pass():
    def double(x, *, more=0):
        """Twice."""
        return 2 * x + more

    larger = cpython.with_room(double)
    assert (larger(2), larger(2, more=1)) == (4, 5)
    assert (larger.__name__, larger.__doc__) == ("double", "Twice.")

"""Settings of CPython: room for frames, so that calls take no memory, and no search for garbage."""

import gc
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


@pytest.fixture
def _as_it_was():
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


@pytest.mark.usefixtures("_as_it_was")
@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_left_as_it_was_found(on):
    (gc.enable if on else gc.disable)()
    with cpython.uncollected(), cpython.uncollected():
        assert not gc.isenabled()
    assert gc.isenabled() == on
    with pytest.raises(ValueError, match="stopped"), cpython.uncollected():
        raise ValueError("stopped")
    assert gc.isenabled() == on

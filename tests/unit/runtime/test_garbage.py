"""Garbage is not searched for while programs are made."""

import gc

import pytest

from abele import cpython


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

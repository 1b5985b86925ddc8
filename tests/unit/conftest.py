"""What several unit tests need: processes, here threads that share a store."""

import pytest
from torch import distributed

from abele.collectives.meeting import ENDED, Board


@pytest.fixture
def boards():
    """Makes the boards of several processes; closes them.

    Their store is memory of this process: nothing here is about sockets, and a machine that
    stands still for seconds breaks no connection.
    """
    made = []

    def make(count, timeout_s=30.0, without=()):
        store = distributed.HashStore()
        for rank in set(range(count)) - set(without):
            made.append(Board(store, rank, count, timeout_s, lambda: "at work", "process 0"))
        return made

    yield make
    for board in reversed(made):
        board.close(ENDED)

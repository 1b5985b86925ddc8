"""What several unit tests need: processes, here threads that share a store."""

import datetime

import pytest
from torch import distributed

import instances
from abele.collectives.board import ENDED, Board


@pytest.fixture
def boards():
    """Makes the boards of several processes; closes them."""
    made = []

    def make(count, timeout_s=2.0, without=()):
        port = instances.free_port()
        wait = datetime.timedelta(seconds=5)
        for rank in range(count):
            store = distributed.TCPStore(
                "127.0.0.1", port, is_master=rank == 0, timeout=wait, wait_for_workers=False
            )
            if rank not in without:
                made.append(Board(store, rank, count, timeout_s, lambda: "at work", "process 0"))
        return made

    yield make
    for board in reversed(made):
        board.close(ENDED)

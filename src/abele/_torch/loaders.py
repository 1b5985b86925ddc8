"""Worker processes of torch's data loader, which torch neither shows nor replaces."""

from __future__ import annotations

from typing import Any


def has_lost_worker(batches: Any) -> bool:
    """Return whether a worker process of a loader's iterator has ended.

    Torch keeps the iterator of persistent workers and asks them for the next epoch, also those that
    were killed; every later epoch then fails.

    Args:
        batches: an iterator of torch's loader with ``num_workers`` of 1 or more.
    """
    return any(not worker.is_alive() for worker in batches._workers)

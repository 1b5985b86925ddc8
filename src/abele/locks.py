"""Locks that are free in a forked child, whichever thread held them at the fork."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from abele import systems


class Lock:
    """A re-entrant lock for ``with`` that is free again in a forked child."""

    def __init__(self):
        self._lock: Any = threading.RLock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Free the lock in a forked child if the thread that held it does not exist there."""
        if not self._lock._is_owned():
            self._lock = threading.RLock()


class Locks:
    """Several locks as one; acquired in the given order, released in reverse."""

    def __init__(self, locks: Sequence[Lock]):
        self._locks = tuple(locks)

    def __enter__(self) -> None:
        for lock in self._locks:
            lock.__enter__()

    def __exit__(self, *exc: object) -> None:
        for lock in reversed(self._locks):
            lock.__exit__()


_all: weakref.WeakSet[Lock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_all):
        lock.renew()


systems.after_fork(_renew_all)

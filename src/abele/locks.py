"""Locks that are free in a forked child, whichever thread held them at the fork."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from abele import systems

_Base: Any = type(threading.RLock())


class Lock(_Base):
    """A re-entrant lock that is free again in a forked child."""

    def __init__(self):
        _all.add(self)

    def renew(self) -> None:
        """Free the lock in a forked child if the thread that held it does not exist there."""
        if not self._is_owned():
            self._at_fork_reinit()


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

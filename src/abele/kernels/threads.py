"""The limit on threads of compiled code, in all loaded libraries of this process.

Code divides its work into as many parts as it is given threads, whatever the limit, so its results
have the same bits; fewer threads compute these parts (``threads.h``).
"""

from __future__ import annotations

import ctypes
import weakref

from abele.locks import Lock

#: A limit that limits nothing.
ALL = 2**31 - 1
_NAME = "abele_usable_threads"  # a variable of each library

_limit = ALL
_libraries = weakref.WeakSet[ctypes.CDLL]()
_lock = Lock()


def follow(library: ctypes.CDLL) -> ctypes.CDLL:
    """Apply the limit to a library from now on, and return it."""
    with _lock:
        _libraries.add(library)
        _write(library)
    return library


def limit(most: int) -> None:
    """Let compiled code use at most so many threads from its next parallel region on."""
    global _limit
    with _lock:
        _limit = most
        for library in _libraries:
            _write(library)


def _write(library: ctypes.CDLL) -> None:
    ctypes.c_int.in_dll(library, _NAME).value = _limit

"""Keeping memory between operations and steps instead of returning it to the system.

A freed block of many megabytes goes back to the system, and the next one has to be mapped and
cleared again, page by page: up to half the time of a step. Only the C library of GNU offers a
switch (mallopt(3)); elsewhere nothing is changed. The switch is for the whole process, so it is on
only while a program runs: one whose tensors have no planned places, or operator by operator.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Generator

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEEP = 2**31 - 1
_DEFAULT_MMAP = 32 * 2**20  # the largest that malloc grows its own threshold to

_running = 0
_lock = threading.Lock()


@contextlib.contextmanager
def kept() -> Generator[None]:
    """While open, freed memory stays with this process and is used again."""
    global _running
    with _lock:
        _running += 1
        if _running == 1:
            _set(_KEEP)
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                _set(_DEFAULT_MMAP)


def _set(mmap_threshold: int) -> None:
    mallopt = _mallopt()
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, mmap_threshold)
        # Never lowered again: what this process freed last would leave with the next small block.
        mallopt(_TRIM_THRESHOLD, _KEEP)


@functools.cache
def _mallopt():
    library = ctypes.CDLL(None)
    return library.mallopt if hasattr(library, "gnu_get_libc_version") else None

"""Processes that write the same files of a folder one after the other."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Generator
from pathlib import Path

WAITS_S = 10.0
_PAUSE_S = 0.01


@contextlib.contextmanager
def turn(folder: Path, waits_s: float = WAITS_S) -> Generator[bool]:
    """Hold a folder; others that want it meanwhile wait.

    A process that ends lets go. Where a file system knows no locks, or one that holds it has been
    stopped, nobody waits for ever.

    Args:
        folder: which one.
        waits_s: how long to wait for others, in seconds.

    Yields:
        Whether it is held.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        yield _lock(handle, waits_s)
    finally:
        os.close(handle)


@contextlib.contextmanager
def only_process(file: Path) -> Generator[None]:
    """Hold a file that no other process holds.

    A process that ends lets go. Processes that it has forked never hold the file, so those that
    outlive it keep nobody away. Where a file system knows no locks, nobody is kept away either.

    Args:
        file: made if it is not there; stays. Where this process opens and closes it meanwhile, it
            lets go.

    Raises:
        BlockingIOError: another process holds it.
        OSError: it cannot be made.
    """
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(ImportError):  # not on this system
            import fcntl

            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise BlockingIOError(error.errno, "another process holds it", file) from error
        yield
    finally:
        os.close(handle)


def _lock(handle: int, waits_s: float) -> bool:
    try:
        import fcntl
    except ImportError:  # not on this system
        return False
    until = time.monotonic() + waits_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(_PAUSE_S)
        except OSError:
            return False

"""Safe opening and locking of files in folders that other users may write to."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import BinaryIO

from abele import systems

_LONGEST = 255  # bytes of a name; Linux's file systems take no more


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read; refuse pipes and devices, which would block the reader.

    Raises:
        OSError: there is no such file, it may not be read, or it is no ordinary file.
    """
    handle = os.open(path, os.O_RDONLY | systems.OWN | systems.UNBLOCKED)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, "it is no ordinary file", str(path))
    return os.fdopen(handle, "rb")


def make_private(path: Path, mode: int = 0o700) -> None:
    """Create a folder that belongs to this user, or check that the existing one does.

    Another user may have made a folder of that name among the temporary files.

    Args:
        path: the folder; parent folders are created too.
        mode: permission bits; only this user may write.

    Raises:
        OSError: it is no folder, somebody else's, or others may write to it.
    """
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != systems.user():
        raise OSError(f"{path} is not a folder of this user's own")
    if systems.others_write(status):
        raise OSError(f"{path} can be written by other users")


def why_no_folder_name(name: str) -> str | None:
    """Explain why a text is not a valid folder name; None if it is valid."""
    if not name.strip():
        return "it is empty"
    if name in (os.curdir, os.pardir):
        return "it names another folder"
    found = [each for each in ("/", "\\", "\0") if each in name]
    if found:
        return f"it has a {found[0]!r}, so it is a path or no name at all"
    size = len(name.encode(errors="surrogatepass"))
    return f"it has {size} bytes; names have at most {_LONGEST}" if size > _LONGEST else None


WAITS_S = 10.0
_PAUSE_S = 0.01


@contextlib.contextmanager
def folder_lock(folder: Path, waits_s: float = WAITS_S) -> Generator[bool]:
    """Lock a folder in a ``with`` block; other processes wait.

    The lock ends with its process. Waiting is limited, for file systems without locks and for
    holders that have been stopped.

    Yields:
        Whether the lock is held.
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
def exclusive_file(file: Path) -> Generator[None]:
    """Lock a file in a ``with`` block, or raise if another process holds the lock.

    The lock ends with its process and is not inherited by forked processes. On file systems
    without locks, no process is locked out.

    Args:
        file: created if missing; stays. The lock is lost if this process opens and closes the
            file meanwhile.

    Raises:
        BlockingIOError: another process holds it.
        OSError: the file cannot be created.
    """
    handle = os.open(file, os.O_RDWR | os.O_CREAT | systems.OWN, 0o666)
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


def prune(paths: Iterable[Path], most_bytes: int) -> None:
    """Delete the files that were used longest ago, until the others fit into a size."""
    with contextlib.suppress(OSError):
        status = {path: path.stat() for path in paths}
        for path in sorted(status, key=lambda path: -status[path].st_mtime):
            most_bytes -= status[path].st_size
            if most_bytes < 0:
                path.unlink(missing_ok=True)

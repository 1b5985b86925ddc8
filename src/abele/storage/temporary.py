"""Temporary files with their process in the name, so that a killed process's files are deleted.

A killed process leaves its files behind. The next process that makes files in the same folder
deletes those whose process has ended. Processes of other machines or containers are not visible, so
their files are deleted after a week.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from abele import systems

_PROC = Path("/proc")
_PATTERN = re.compile(r"abele-([0-9a-f]{8})-(\d+)-(\d+)-.*")
ABANDONED_S = 7 * 24 * 3600.0


def made_folder(name: str = "") -> str:
    """Create a temporary folder that the caller deletes, and return its path.

    Args:
        name: the end of the folder's prefix.

    Raises:
        OSError: it cannot be created.
    """
    sweep()
    return tempfile.mkdtemp(prefix=f"{prefix()}{name}", dir=systems.temporary_folder())


@contextlib.contextmanager
def folder(parent: str | os.PathLike[str] | None = None) -> Generator[str]:
    """Create a temporary folder for a ``with`` block.

    Args:
        parent: the parent folder; default: the system's.

    Yields:
        Its path.

    Raises:
        OSError: the parent cannot be written.
    """
    sweep(parent)
    with tempfile.TemporaryDirectory(
        dir=parent or systems.temporary_folder(), prefix=prefix()
    ) as path:
        yield path


def prefix() -> str:
    """Return the prefix of this process's temporary file names."""
    return f"abele-{this_machine()}-{os.getpid()}-{started() or 0}-"


def sweep(parent: str | os.PathLike[str] | None = None) -> None:
    """Delete this user's temporary files of ended processes; never fails."""
    with contextlib.suppress(OSError), os.scandir(parent or systems.temporary_folder()) as entries:
        for entry in entries:
            match = _PATTERN.fullmatch(entry.name)
            if match is not None:
                with contextlib.suppress(OSError):
                    _delete_if_left(entry, match[1], int(match[2]), int(match[3]))


def _delete_if_left(entry: os.DirEntry[str], machine: str, pid: int, since: int) -> None:
    status = entry.stat(follow_symlinks=False)
    if status.st_uid != systems.user():
        return
    same_machine = systems.POSIX and machine == this_machine()
    if runs(pid, since) if same_machine else time.time() - status.st_mtime < ABANDONED_S:
        return
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path, ignore_errors=True)
    else:
        os.unlink(entry.path)


def started(process: int | None = None) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if it is unknown.

    Args:
        process: its PID; None: this process.
    """
    own = os.getpid()
    return _own_start(own) if process in (None, own) else _start(process)


@functools.cache
def _own_start(process: int) -> int | None:
    # qemu-user gives each thread its own time; all of a process have to name the same one.
    return _start(process)


def _start(process: int | None) -> int | None:
    try:
        text = (_PROC / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name of the program comes second, in parentheses, and may contain anything.
    state, *rest = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])


def runs(process: int, since: int) -> bool:
    """Return whether a process of this machine still runs, identified by PID and start time.

    Args:
        process: its PID.
        since: its start time as it found it itself, in clock ticks since boot; 0 if unknown.
    """
    start = started(process)
    if start is not None:
        # qemu-user tells a process that it started later than others see. Whatever had this PID
        # at that time is still the same process.
        return since == 0 or start <= since
    # Other users' processes may be hidden, and there may be no /proc: a signal still tells.
    if (_PROC / "self/stat").exists() and (_PROC / "1/stat").exists():
        return False
    if not systems.POSIX:  # signal 0 is Ctrl-C there
        return True
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def boot() -> str | None:
    """Return the identifier of this boot of the machine, or None if it has none."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return None


def namespace() -> str | None:
    """Return the identifier of the PID namespace; None if it is unknown."""
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return None


@functools.cache
def this_machine() -> str:
    """Return an identifier of this machine, its boot and its PID namespace."""
    text = f"{boot()} {namespace()} {platform.node()}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]

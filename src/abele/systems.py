"""Parts of the standard library that only some operating systems have: users, groups, memory."""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Callable

#: Flags of ``os.open`` for files that started programs do not inherit, read byte by byte.
OWN = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOINHERIT", "O_BINARY"))
#: A flag of ``os.open``: a pipe blocks nobody.
UNBLOCKED = getattr(os, "O_NONBLOCK", 0)
#: Exit status of a program whose reader has ended, as shells have it; ``SIGPIPE`` is 13.
PIPE_CLOSED = 128 + 13
#: Whether processes have groups, signals beyond ``SIGTERM``, and files an owner.
POSIX = sys.platform != "win32"
_NAMES = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}


def elsewhere(subject: str) -> str | None:
    """Return a sentence that something needs Linux and this is another system; None on Linux."""
    system = _NAMES.get(sys.platform, sys.platform)
    return None if system == "Linux" else f"{subject} Linux, and this is {system}."


def user() -> int:
    """Return the user's number; 0, as files have it, on systems whose users have none."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def others_write(status: os.stat_result) -> bool:
    """Return whether a file's permission bits, where they mean something, let others write it."""
    return POSIX and bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def memory() -> int | None:
    """Return the machine's memory in bytes; None if it is unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def load() -> float:
    """Return how many threads of the machine ran lately, on average; 0 if it is unknown."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def after_fork(function: Callable[[], None]) -> None:
    """Have a function called in each forked child, where there is a fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def temporary_folder() -> str:
    """Return the folder of temporary files.

    Raises:
        OSError: there is none that can be written. The current folder, Python's last resort, is for
            files that somebody asked for.
    """
    found = tempfile.gettempdir()
    chosen = (os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP"))
    usual = {os.path.abspath(each) for each in ("/tmp", "/var/tmp", "/usr/tmp", *chosen) if each}
    if found not in usual and found == os.getcwd():
        raise FileNotFoundError(errno.ENOENT, "no temporary folder can be written (see TMPDIR)")
    return found

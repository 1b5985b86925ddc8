"""Makes this process resemble one on macOS or Windows, as far as programs can tell.

Run as ``python other_system.py SYSTEM PROGRAM``, with a program's text. What such a system's
standard library lacks is removed before the program imports anything of this project.
"""

import ctypes
import errno
import faulthandler
import os
import select
import signal
import sys

_SCHEDULER = ("sched_getaffinity", "sched_setaffinity", "sched_setscheduler", "sched_param")
_LINUX = (*_SCHEDULER, "SCHED_IDLE", "memfd_create", "MFD_CLOEXEC", "pidfd_open", "posix_fallocate")
_POSIX = (
    *("getuid", "geteuid", "getgid", "getegid", "uname", "sysconf", "killpg", "fork", "nice"),
    *("register_at_fork", "getloadavg", "O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW", "statvfs"),
    *("fchmod", "chown", "mkfifo", "WNOHANG", "sched_yield", "setsid", "getpgid"),
)
_SIGNALS = ("HUP", "QUIT", "KILL", "USR1", "USR2", "PIPE", "ALRM", "CHLD", "STOP", "CONT")
_OTHER_SIGNALS = ("setitimer", "ITIMER_REAL", "pthread_kill", "pthread_sigmask")
_ELSEWHERE = {
    faulthandler: ("register", "unregister"),
    select: ("poll", "epoll", "POLLIN"),
}
_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "pty", "tty")
_LINUX_FOLDERS = ("/proc/", "/sys/", "/dev/shm")


def become(system):
    """Remove what a system (darwin or win32) lacks from this process's standard library."""
    # torch asks for the real system as it is imported, and is no part of this project.
    import asyncio, multiprocessing.connection, subprocess, tempfile  # noqa: E401, F401, I001
    import filelock, torch, tqdm  # noqa: E401, F401

    windows = system == "win32"
    for name in (*_LINUX, *(_POSIX if windows else ())):
        if hasattr(os, name):
            delattr(os, name)
    for name in (*(f"SIG{each}" for each in _SIGNALS), *_OTHER_SIGNALS) if windows else ():
        delattr(signal, name)
    for module, names in _ELSEWHERE.items() if windows else ():
        for name in names:
            delattr(module, name)
    if windows:
        ctypes.CDLL = _Library  # type: ignore[reportAttributeAccessIssue]
    for name in _MODULES if windows else ():
        sys.modules[name] = None  # type: ignore[reportArgumentType]
    sys.platform = system
    sys.addaudithook(_watch_windows if windows else _watch)


class _Library(ctypes.CDLL):
    """A library on Windows, where the program itself is none."""

    def __init__(self, name, *arguments, **options):
        if name is None:
            raise TypeError("argument of type 'NoneType' is not iterable")
        super().__init__(name, *arguments, **options)


def _watch(event, arguments):
    if event in ("open", "os.listdir", "os.scandir"):
        path = str(arguments[0])
        if path.startswith(_LINUX_FOLDERS):
            raise FileNotFoundError(errno.ENOENT, "not on this system", path)


def _watch_windows(event, arguments):
    _watch(event, arguments)
    if event == "open" and isinstance(arguments[0], str) and os.path.isdir(arguments[0]):
        raise PermissionError(errno.EACCES, "a folder is no file", arguments[0])


if __name__ == "__main__":
    become(sys.argv[1])
    program = sys.argv[2]
    del sys.argv[1:]
    exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})

"""Execution of programs with torch's allocations at planned offsets; see ``arena.cpp``.

The library is compiled once per machine, in seconds, where programs are compiled. Without it
tensors come from the C library: more memory, equal results.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import platform
import weakref
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import torch

from abele import systems
from abele.arena.places import Allocation, Places, planned_again
from abele.kernels import build
from abele.locks import Lock

#: Name of the arena library among the libraries that are compiled once per machine.
NAME = "arena"
_SOURCE = Path(__file__).with_name("arena.cpp")


def made(compiler: str) -> bool:
    """Compile the arena library if missing, and return whether it can be used.

    Args:
        compiler: path of the C++ compiler.

    Raises:
        CompilerError: the compiler does not accept it.
    """
    for each in makings(compiler):
        build.make(each)
    return available()


def makings(compiler: str) -> list[build.Making]:
    """Return the compile command of the arena library, for any process; empty if it exists.

    Args:
        compiler: path of the C++ compiler.
    """
    if _path().is_file():
        return []
    torchs = Path(torch.__file__).parent
    linked = ["-shared", "-s", f"-I{torchs / 'include'}", f"-L{torchs / 'lib'}", str(_SOURCE)]
    command = [compiler, *_FLAGS, *linked, "-lc10", "-o", build.RESULT]
    return [build.Making(command, str(_path()))]


_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden")


def available() -> bool:
    """Return whether the arena library exists for this version of torch, without compiling."""
    return _path().is_file() and _library(_path()) is not None


@functools.cache
def _path() -> Path:
    digest = hashlib.sha256(_SOURCE.read_bytes())
    digest.update("\n".join((*_FLAGS, torch.__version__, platform.machine())).encode())
    return build.cache_folder() / f"abele_arena_{digest.hexdigest()[:16]}.so"


@functools.cache
def _library(path: Path) -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(path))
    except OSError:  # of another system, or cut short
        return None
    numbers = ctypes.POINTER(ctypes.c_int64)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "install": (None, ()),
        "plan": (pointer, ()),
        "set": (ctypes.c_bool, (pointer, number, numbers, numbers, number, ctypes.c_bool)),
        "drop": (None, (pointer,)),
        "begin": (pointer, (pointer,)),
        "end": (None, (pointer,)),
        "record": (pointer, ()),
        "recorded": (number, (pointer,)),
        "entries": (None, (pointer, numbers)),
        "count": (number, (number,)),
        "release": (None, ()),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"abele_arena_{name}")
        function.restype, function.argtypes = result, arguments
    library.abele_arena_install()
    return library


#: Maximum number of recorded runs, after each of which a program's offsets are replanned.
_RECORDED = 3


class Arena:
    """The planned memory of one program; idle memory is shared with other programs.

    Its plan is made again from what the first runs allocate, until two in a row allocate alike:
    operators also allocate inside, which no graph shows, and some only in their first call.

    Args:
        places: of its tensors; None if they come from the C library.
    """

    def __init__(self, places: Places | None):
        library = _library(_path()) if available() else None
        self._otherwise = contextlib.nullcontext if places is None else kept
        if library is None or places is None:
            self._library = None
            return
        self._library, self._places = library, places
        self._plan = library.abele_arena_plan()
        weakref.finalize(self, library.abele_arena_drop, self._plan).atexit = False
        self._left = _RECORDED  # runs to record
        self._set(places, final=False)

    @contextlib.contextmanager
    def used(self) -> Generator[None]:
        """Allocate this thread's tensors at their planned offsets while the context is open.

        Without the library, which a new machine has yet to compile, freed memory stays with the
        process instead: up to 1.7 times as fast as returning it to the system.
        """
        if self._library is None:
            with self._otherwise():
                yield
            return
        run = self._library.abele_arena_begin(self._plan)  # None where there is no memory
        recording = _nothing() if run is None or not self._left else recorded()
        try:
            with recording as allocations:
                yield
        finally:
            if run is not None:
                self._library.abele_arena_end(run)
        if allocations:
            self._settle(allocations)

    def _settle(self, allocations: Sequence[Allocation]) -> None:
        """Replan offsets if a run's allocations differ from the plan."""
        expected = [each.size for each in allocations] == self._places.sizes
        places = self._places if expected else planned_again(allocations)
        # The plan cannot be set while another thread runs the program.
        if self._set(places, final=True):
            self._places, self._left = places, 0 if expected else self._left - 1

    def _set(self, places: Places, *, final: bool) -> bool:
        assert self._library is not None
        array = ctypes.c_int64 * len(places.sizes)
        sizes, offsets = array(*places.sizes), array(*places.offsets)
        return self._library.abele_arena_set(
            self._plan, len(places.sizes), sizes, offsets, places.total, final
        )


@contextlib.contextmanager
def _nothing() -> Generator[list[Allocation]]:
    yield []


@contextlib.contextmanager
def recorded() -> Generator[list[Allocation]]:
    """Record this thread's allocations in order, into a list that is filled on exit.

    Allocations of less than ``LEAST`` bytes are left out, and all where the library is not there.
    """
    allocations: list[Allocation] = []
    library = _library(_path()) if available() else None
    if library is None:
        yield allocations
        return
    recording = library.abele_arena_record()
    try:
        yield allocations
    finally:
        count = library.abele_arena_recorded(recording)
        numbers = (ctypes.c_int64 * (4 * count))()
        library.abele_arena_entries(recording, numbers)
        values = list(numbers)
        allocations += (Allocation(*values[at : at + 4]) for at in range(0, 4 * count, 4))


def counts() -> tuple[int, int, int]:
    """Return the numbers of tensors allocated at planned offsets, in gaps, and elsewhere."""
    library = _library(_path()) if available() else None
    if library is None:
        return 0, 0, 0
    at_place, in_gap, elsewhere = (library.abele_arena_count(which) for which in range(3))
    return at_place, in_gap, elsewhere


def bytes_of_slabs() -> int:
    """Return the total bytes of the arena's shared buffers."""
    library = _library(_path()) if available() else None
    return 0 if library is None else library.abele_arena_count(3)


def release() -> None:
    """Return the memory of idle shared buffers to the system, until a program runs there."""
    library = _library(_path()) if available() else None
    if library is not None:
        library.abele_arena_release()


# -- without the library -------------------------------------------------------------------

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEEP = 2**31 - 1
_DEFAULT_MMAP = 32 * 2**20  # the largest that malloc grows its own threshold to

_running = 0
_lock = Lock()


@contextlib.contextmanager
def kept() -> Generator[None]:
    """Keep freed memory in the process (``mallopt``) for reuse, in a context.

    A freed block of many megabytes otherwise goes back to the system, and the next one is mapped
    and cleared page by page: up to half the time of a step. Only the C library of GNU offers a
    switch (mallopt(3)), and it is for the whole process, so it is on only while a program runs.
    """
    global _running
    with _lock:
        _running += 1
        if _running == 1:
            _set_threshold(_KEEP)
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                _set_threshold(_DEFAULT_MMAP)


def _set_threshold(bytes_of_block: int) -> None:
    mallopt = _mallopt()
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, bytes_of_block)
        # Never lowered again: what this process freed last would leave with the next small block.
        mallopt(_TRIM_THRESHOLD, _KEEP)


@functools.cache
def _mallopt():
    if not systems.POSIX:  # the program itself is no library there
        return None
    library = ctypes.CDLL(None)
    return library.mallopt if hasattr(library, "gnu_get_libc_version") else None

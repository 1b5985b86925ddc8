"""Programs whose tensors torch makes at planned places; see ``arena.cpp``.

The library is compiled once per machine, in seconds, by whoever compiles anyway. Where it is not
there, tensors come from the C library as ever: more memory, the same numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import platform
import weakref
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch

from abele.arena.kept import kept
from abele.arena.places import LEAST, Places
from abele.kernels import build

#: What targets call it among what is made once per machine.
NAME = "arena"
_SOURCE = Path(__file__).with_name("arena.cpp")


def made(compiler: str) -> bool:
    """Compile the library unless it is there; says whether it can be used.

    Args:
        compiler: path of the C++ compiler.

    Raises:
        CompilerError: the compiler does not accept it.
    """
    for each in makings(compiler):
        build.make(each)
    return available()


def makings(compiler: str) -> list[build.Making]:
    """What makes the library, for another process to do; nothing where it is there.

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
    """Whether the library is there for this version of torch; nothing is compiled."""
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
        "plan": (pointer, (number, numbers, numbers, number, number)),
        "drop": (None, (pointer,)),
        "begin": (pointer, (pointer,)),
        "end": (None, (pointer,)),
        "count": (number, (number,)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"abele_arena_{name}")
        function.restype, function.argtypes = result, arguments
    library.abele_arena_install()
    return library


class Arena:
    """The memory of one program, which others use while it does not run.

    Args:
        places: of its tensors; None if they come from the C library.
    """

    def __init__(self, places: Places | None):
        library = _library(_path()) if available() else None
        self._otherwise = contextlib.nullcontext if places is None else kept
        if library is None or places is None:
            self._begin = None
            return
        count = len(places.sizes)
        array = ctypes.c_int64 * count
        plan = library.abele_arena_plan(
            count, array(*places.sizes), array(*places.offsets), LEAST, places.total
        )
        self._plan, self._begin, self._end = (
            plan,
            library.abele_arena_begin,
            library.abele_arena_end,
        )
        weakref.finalize(self, library.abele_arena_drop, plan).atexit = False

    @contextlib.contextmanager
    def used(self) -> Generator[None]:
        """While open, this thread's tensors go to the places that are planned for them.

        Without places, what is freed stays with this process: on a new machine, where the library
        is still to be compiled, that is up to 1.7 times as fast.
        """
        if self._begin is None:
            with self._otherwise():
                yield
            return
        run = self._begin(self._plan)  # None where there is no memory
        try:
            yield
        finally:
            if run is not None:
                self._end(run)


def counts() -> tuple[int, int, int]:
    """Tensors that went to their place, into a gap, and elsewhere; all so far."""
    library = _library(_path()) if available() else None
    if library is None:
        return 0, 0, 0
    at_place, in_gap, elsewhere = (library.abele_arena_count(which) for which in range(3))
    return at_place, in_gap, elsewhere


def bytes_of_slabs() -> int:
    """Bytes that programs keep for their tensors, all together."""
    library = _library(_path()) if available() else None
    return 0 if library is None else library.abele_arena_count(3)

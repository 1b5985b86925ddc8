"""CPython settings for captures: garbage collection off, room for stack frames.

A graph consists of about a hundred thousand live objects. Collections during capture visit all of
them and all imported modules without result, which took a seventh of the time to the first step.
Besides, computations of a finalizer would be traced into the program.

Python stores frames in chunks of 16 KiB, allocates another where the next frame does not fit, and
frees it when that function returns. A loop at the end of a chunk maps, clears and unmaps memory for
each function that it calls; captures spent up to half a second so, depending on the depth of the
caller. A frame larger than half a chunk makes the chunk larger, with room for following frames.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import types
from collections.abc import Callable, Generator
from typing import Any, ParamSpec, TypeVar, cast


@contextlib.contextmanager
def uncollected() -> Generator[None]:
    """Disable the garbage collector in a ``with`` block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


P = ParamSpec("P")
T = TypeVar("T")

# Pointers. Chunks are powers of two, so this frame gets one of 2 MiB and leaves half of it; memory
# that no frame uses is never touched.
_SIZE = 2**17


def with_room(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function with millions of calls to start in a fresh chunk of stack frames.

    Args:
        function: called rarely, because the chunk costs tens of microseconds.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    code = call.__code__.replace(co_stacksize=_SIZE)
    larger = types.FunctionType(code, globals(), call.__name__, None, call.__closure__)
    return cast("Callable[P, T]", functools.wraps(function)(larger))

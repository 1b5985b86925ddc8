"""CPython settings for captures: garbage collection off, calls watched, room for stack frames.

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
import sys
import threading
import types
from collections.abc import Callable, Generator, Mapping
from typing import Any, ParamSpec, TypeVar, cast

from abele.locks import Lock


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


_Watcher = tuple[Callable[[types.FrameType, str, Any], None], Mapping[types.CodeType, bool]]
_watchers: dict[int, _Watcher] = {}  # by thread
_changing = Lock()
# Numbers that Python gives to no kind of tool: debuggers, coverage and profilers have their own,
# and may start during a capture.
_NUMBERS = (3, 4)


@contextlib.contextmanager
def calls_passed_to(
    watcher: Callable[[types.FrameType, str, Any], None], ignored: Mapping[types.CodeType, bool]
) -> Generator[None]:
    """Pass the frame of each function that this thread calls to a watcher, in a ``with`` block.

    Args:
        watcher: a trace function for calls alone.
        ignored: says of code that was called whether the watcher needs to see no further calls.
    """
    outer, tracer = _watchers.get(threading.get_ident()), sys.gettrace()
    if not _watch((watcher, ignored)):
        sys.settrace(watcher)
    try:
        yield
    finally:
        _watch(outer)
        if sys.gettrace() is watcher:  # and not a debugger that the user's code has started
            sys.settrace(tracer)


def _watch(watcher: _Watcher | None) -> bool:
    """Set this thread's watcher; return whether ``sys.monitoring`` has a number left for it."""
    with _changing:
        _watchers.pop(threading.get_ident(), None)
        if watcher is not None:
            _watchers[threading.get_ident()] = watcher
        if sys.version_info < (3, 12):
            return False
        monitoring = sys.monitoring
        users = [*map(monitoring.get_tool, _NUMBERS)]
        user = "abele" if "abele" in users else None
        if user not in users:
            return False
        tool = _NUMBERS[users.index(user)]

        def started(code: types.CodeType, offset: int) -> Any:
            found = _watchers.get(threading.get_ident())
            if found is None:
                return None
            found[0](sys._getframe(1), "call", None)
            alone = len(_watchers) == 1  # code is disabled for all threads
            return monitoring.DISABLE if alone and found[1].get(code) else None

        if user is None:
            monitoring.use_tool_id(tool, "abele")
        kinds = (monitoring.events.PY_START, monitoring.events.PY_RESUME)
        for kind in kinds:
            monitoring.register_callback(tool, kind, started if _watchers else None)
        monitoring.set_events(tool, sum(kinds) if _watchers else 0)
        # Code that one watcher ignored may concern the next one, or another tool of this number.
        monitoring.restart_events()
        if not _watchers:
            monitoring.free_tool_id(tool)
    return True


def is_watched() -> bool:
    """Return whether a watcher sees the calls of this thread."""
    return threading.get_ident() in _watchers


@contextlib.contextmanager
def unwatched() -> Generator[None]:
    """Suspend tracing for this thread's watcher in a ``with`` block without code of the user's.

    Under a trace function each instruction takes about three times as long.
    """
    tracer = sys.gettrace()
    suspends = tracer is not None and tracer is _watchers.get(threading.get_ident(), (None,))[0]
    if suspends:
        sys.settrace(None)
    try:
        yield
    finally:
        if suspends:
            sys.settrace(tracer)


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

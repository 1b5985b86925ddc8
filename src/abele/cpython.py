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
from collections.abc import Callable, Generator
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


_Watcher = Callable[[types.FrameType, str, Any], Any]
_watchers: dict[int, _Watcher] = {}  # by thread
_changing = Lock()
#: What a watcher returns for code of which it needs to see no further calls.
IGNORED: Any = sys.monitoring.DISABLE if sys.version_info >= (3, 12) else None


@contextlib.contextmanager
def calls_passed_to(watcher: _Watcher) -> Generator[None]:
    """Pass the frame of each function that this thread calls to a watcher, in a ``with`` block."""
    outer, tracer = _watchers.get(threading.get_ident()), sys.gettrace()
    _watch(watcher, watcher)
    try:
        yield
    finally:
        _watch(outer, tracer)


def _watch(watcher: _Watcher | None, tracer: Any) -> None:
    """Set this thread's watcher, and its trace function where Python has nothing faster."""
    with _changing:
        _watchers.pop(threading.get_ident(), None)
        if watcher is not None:
            _watchers[threading.get_ident()] = watcher
        if sys.version_info >= (3, 12):
            started = sys.monitoring.events.PY_START | sys.monitoring.events.PY_RESUME
            sys.monitoring.set_events(_tool(), started if _watchers else 0)
            return sys.monitoring.restart_events()  # of code that other watchers have ignored
    return sys.settrace(tracer)


@functools.cache
def _tool() -> int:
    """Register at ``sys.monitoring``; return the number of the tool."""
    if sys.version_info < (3, 12):
        raise NotImplementedError
    monitoring = sys.monitoring
    tool = next(each for each in (4, 3, 5, 2, 1, 0) if monitoring.get_tool(each) is None)

    def started(code: types.CodeType, offset: int) -> Any:
        watcher = _watchers.get(threading.get_ident())
        return None if watcher is None else watcher(sys._getframe(1), "call", None)

    monitoring.use_tool_id(tool, "abele")
    for event in (monitoring.events.PY_START, monitoring.events.PY_RESUME):
        monitoring.register_callback(tool, event, started)
    return tool


@contextlib.contextmanager
def unwatched() -> Generator[None]:
    """Suspend this thread's watcher in a ``with`` block where no code of the user's runs.

    Under a trace function each instruction takes about three times as long.
    """
    tracer = sys.gettrace()
    suspends = tracer is not None and tracer is _watchers.get(threading.get_ident())
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

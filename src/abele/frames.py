"""Room for the frames of Python's functions, so that calls do not ask the system for memory.

Python keeps frames in pieces of 16 KiB, takes another where the next frame does not fit, and gives
it back when that function returns. Where a loop stands at the end of a piece, each function that it
calls maps, clears and unmaps memory. How deep the caller is decides that: captures spent up to half
a second so. A frame larger than half a piece makes the piece larger, and the rest of it is free for
the frames that follow.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

# Pointers. Pieces are powers of two, so this frame gets one of 2 MiB and leaves half of it; memory
# that no frame comes to is never touched.
_SIZE = 2**17


def with_room(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function that makes millions of calls begin in a piece of its own.

    Args:
        function: called rarely, because the piece costs tens of microseconds.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    code = call.__code__.replace(co_stacksize=_SIZE)
    larger = types.FunctionType(code, globals(), call.__name__, None, call.__closure__)
    return cast("Callable[P, T]", functools.wraps(function)(larger))

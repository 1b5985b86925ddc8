"""With which status ``sys.exit`` ends the program.

Python tells nobody of a ``SystemExit`` that ends it. It frees it, though, when no frame of the
program is left, and then calls what is registered with ``atexit``. One that the program catches is
freed while frames run. Where the program raises it without ``sys.exit``, or keeps it in a variable
of a frame that it leaves, nothing is known.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

_ending: list[Any] = []


def watch() -> None:
    """Notice from now on what the program gives to ``sys.exit``."""
    sys.exit = functools.partial(_exit, sys.exit)


def words() -> str:
    """``with status 3``, and what is said of it; empty if that is 0 or nobody has told it."""
    code = _ending[0] if _ending else None  # others that it came of are freed after it
    if isinstance(code, int):
        status = code & 0xFF  # as the system cuts it
        return f"with status {status}" if status else ""
    return "" if code is None else f"with status 1: {code}"


def _exit(before: Callable[[Any], NoReturn], status: Any = None, /) -> NoReturn:
    try:
        before(status)
    except SystemExit as ended:
        if threading.current_thread() is threading.main_thread():  # others end only themselves
            vars(ended)["_abele"] = _Freed(ended.code)
        raise


class _Freed:
    """Is freed together with the exception that has it."""

    def __init__(self, code: Any):
        self._code = code

    def __del__(self) -> None:
        this = inspect.currentframe()
        if this is not None and this.f_back is None:
            _ending.append(self._code)

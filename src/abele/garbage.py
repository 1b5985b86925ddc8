"""Pausing Python's garbage collector during capture.

A graph consists of about a hundred thousand live objects. Collections during capture visit all of
them and all imported modules without result, which took a seventh of the time to the first step.
Besides, computations of a finalizer would be traced into the program.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator


@contextlib.contextmanager
def uncollected() -> Generator[None]:
    """While open, the garbage collector does not run, unless other code enables it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

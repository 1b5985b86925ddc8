"""Python's garbage collector, held back while much is made and little is left behind.

A graph is some hundred thousand objects that stay. Each search for garbage among them looks at all
of them, and at everything that was imported, in vain: a seventh of the time to the first step. And
what a finalizer computes while a program is traced would become part of that program.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """While open, unless somebody turns it on, no garbage is searched for; it waits."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

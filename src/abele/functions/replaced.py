"""Replacement of functions of torch and Python while one thread traces a function."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Generator
from typing import Any

Function = Callable[..., Any]


@contextlib.contextmanager
def replaced(*functions: tuple[Any, str, Callable[[Function], Function]]) -> Generator[None]:
    """Replace functions in a ``with`` block, for calls by this thread.

    Args:
        functions: owner (a module or class), name, and a function that returns the replacement of
            the original.
    """
    thread = threading.get_ident()

    def in_thread(original: Function, own: Function) -> Function:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            function = own if threading.get_ident() == thread else original
            return function(*args, **kwargs)

        return call

    originals = [getattr(owner, name) for owner, name, _ in functions]
    try:
        for (owner, name, make), original in zip(functions, originals, strict=True):
            setattr(owner, name, in_thread(original, make(original)))
        yield
    finally:
        for (owner, name, _), original in zip(functions, originals, strict=True):
            setattr(owner, name, original)

"""Replacement of functions of torch and Python while one thread traces a function."""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from collections.abc import Callable, Generator
from typing import Any

Function = Callable[..., Any]
_ORIGINAL = "abele_original"


def original_of(value: Any) -> Any:
    """Return the function that a replacement stands for, or any other value itself."""
    return vars(value).get(_ORIGINAL, value) if type(value) is types.FunctionType else value


@contextlib.contextmanager
def replaced(*functions: tuple[Any, str, Function]) -> Generator[None]:
    """Replace functions in a ``with`` block, for calls by this thread.

    Args:
        functions: owner (a module, class or object), name, and the replacement, which gets the
            original function before the arguments.
    """
    thread = threading.get_ident()

    def in_thread(original: Function, own: Function) -> Function:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            is_own = threading.get_ident() == thread
            return own(original, *args, **kwargs) if is_own else original(*args, **kwargs)

        vars(call)[_ORIGINAL] = original_of(original)
        return call

    originals = [getattr(owner, name) for owner, name, _ in functions]
    inherited = [name not in vars(owner) for owner, name, _ in functions]
    try:
        for (owner, name, own), original in zip(functions, originals, strict=True):
            setattr(owner, name, in_thread(original, own))
        yield
    finally:
        for (owner, name, _), original, is_new in zip(functions, originals, inherited, strict=True):
            delattr(owner, name) if is_new else setattr(owner, name, original)

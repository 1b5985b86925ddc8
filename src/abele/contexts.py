"""Context variables that have a value in a ``with`` block."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from typing import TypeVar

_T = TypeVar("_T")


@contextlib.contextmanager
def held(variable: ContextVar[_T], value: _T) -> Generator[None]:
    """Give a context variable a value in a ``with`` block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)

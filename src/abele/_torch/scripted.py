"""Calls of TorchScript functions, handed to other functions while a forward is captured.

``torch.jit.script`` returns objects of a class of C++ that calls operators past every mode of
Python's, so that nothing public can put something else in the place of these operators.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch

_Function = Callable[..., Any]
_instead: contextvars.ContextVar[Mapping[str, _Function]] = contextvars.ContextVar("scripted")


@contextlib.contextmanager
def scripted_functions_replaced(instead: Mapping[str, _Function]) -> Generator[None]:
    """While open, other functions are called in the place of some TorchScript functions.

    Args:
        instead: by ``ScriptFunction.qualified_name``.
    """
    if instead:
        _watch_calls()
    token = _instead.set(instead)
    try:
        yield
    finally:
        _instead.reset(token)


@functools.cache
def _watch_calls() -> None:
    """Look at every call from now on: several threads may capture at the same time."""
    kind: Any = torch.jit.ScriptFunction
    usual = kind.__call__

    @functools.wraps(usual)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        function = _instead.get({}).get(self.qualified_name)
        return usual(self, *args, **kwargs) if function is None else function(*args, **kwargs)

    kind.__call__ = call

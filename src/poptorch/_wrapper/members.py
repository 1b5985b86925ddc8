"""Construction of wrapper members: forwarded and serialized methods."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def of_part(
    part: str, method: Callable[Concatenate[Any, P], R]
) -> Callable[Concatenate[Any, P], R]:
    """Return a wrapper member that forwards to a part, with signature and docstring.

    Args:
        part: the attribute of the wrapper that holds the part.
        method: of the part's class.
    """
    name = method.__name__

    @functools.wraps(method)
    def member(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        return getattr(getattr(self, part), name)(*args, **kwargs)

    return member


def locked(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Has a method hold the lock of its wrapper, ``self._lock``, while it runs."""

    @functools.wraps(method)
    def alone(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    return alone

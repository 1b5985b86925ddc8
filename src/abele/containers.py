"""Type guards for containers, and the contents of these and of other objects of Python."""

from __future__ import annotations

import array
import collections
import configparser
import contextvars
import ctypes
import functools
import logging
import queue
import string
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeGuard, TypeVar, cast

import numpy
from torch.distributions import Distribution

_T = TypeVar("_T")


def is_sequence(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Return whether ``value`` is a list or a tuple."""
    return isinstance(value, list | tuple)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Return whether ``value`` is a list."""
    return isinstance(value, list)


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    """Return whether ``value`` is a tuple."""
    return isinstance(value, tuple)


def is_set(value: object) -> TypeGuard[set[Any] | frozenset[Any]]:
    """Return whether ``value`` is a set, frozen or not."""
    return isinstance(value, set | frozenset)


def is_slice(value: object) -> TypeGuard[slice[Any, Any, Any]]:
    """Return whether ``value`` is a slice."""
    return isinstance(value, slice)


def is_dict(value: object) -> TypeGuard[dict[Any, Any]]:
    """Return whether ``value`` is a dictionary."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[numpy.ndarray[Any, Any]]:
    """Return whether ``value`` is an array of numpy."""
    return isinstance(value, numpy.ndarray)


def items_of(dictionary: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Return the items of a dictionary, bypassing methods that its class overrides."""
    ordered = isinstance(dictionary, collections.OrderedDict)  # has an order of its own
    plain: Any = collections.OrderedDict if ordered else dict
    return list(plain.items(dictionary))


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Return whether ``value`` is a mapping of any kind."""
    return isinstance(value, Mapping)


def traverse(starts: Iterable[_T], following: Callable[[_T], Iterable[_T]]) -> Iterator[_T]:
    """Yield values and all that they lead to, each once, depth first and in order.

    Args:
        starts: the first values.
        following: returns the values to which one leads directly.
    """
    seen: set[_T] = set()
    waiting = [*starts][::-1]
    while waiting:
        value = waiting.pop()
        if value not in seen:
            seen.add(value)
            yield value
            waiting += [*following(value)][::-1]


_EMPTY: dict[Any, Any] = {}
_SIMPLE: Any = ctypes.c_int.__base__  # of c_int, c_double and so on
#: How to read what objects of other kinds contain, as pairs of a key and a value.
_READ: Mapping[Any, Callable[[Any], Iterable[tuple[Any, Any]]]] = {
    (types.MappingProxyType, collections.UserDict, collections.ChainMap): lambda v: v.items(),
    functools.partial: lambda v: (("func", v.func), ("args", v.args), *v.keywords.items()),
    tuple(map(type, (_EMPTY.keys(), _EMPTY.values(), _EMPTY.items()))): lambda v: v.mapping.items(),
    (
        *(collections.UserList, configparser.RawConfigParser, functools.singledispatchmethod),
        *(numpy.poly1d, queue.Queue, string.Template, Distribution, weakref.WeakKeyDictionary),
    ): lambda v: object.__getattribute__(v, "__dict__").items(),
    logging.Logger: lambda v: [("", (v.getEffectiveLevel(), v.disabled, v.manager.disable))],
    (array.array, bytearray, memoryview, ctypes.Array, _SIMPLE): lambda v: [("", bytes(v))],
    contextvars.ContextVar: lambda v: [("", v.get(None))],
    threading.local: lambda v: v.__dict__.items(),
    threading.Event: lambda v: [("", v.is_set())],
}


def parts_of(value: Any) -> list[tuple[Any, Any]] | None:
    """Return what an object of Python's own or of NumPy's contains, by key; None for others."""
    if is_dict(value):
        return items_of(value)
    if isinstance(value, list | tuple | set | collections.deque):
        return [*enumerate(cast("Iterable[Any]", value))]
    if is_array(value):
        return [*enumerate(value.flat)] if value.dtype.hasobject else [("data", value.tobytes())]
    if type(value).__module__ == "multiprocessing.sharedctypes":  # Value and Array
        return [("", bytes(value.get_obj()))]
    for kinds, read in _READ.items():
        if isinstance(value, kinds):
            return [*read(value)]
    return None

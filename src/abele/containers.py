"""Type guards for containers of any items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy


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
    plain: Any = dict
    return list(plain.items(dictionary))


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Return whether ``value`` is a mapping of any kind."""
    return isinstance(value, Mapping)

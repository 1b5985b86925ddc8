"""Lossless JSON encoding of values: arguments of operations, options and results.

Plain values stay as they are; anything that JSON cannot express becomes an object with one key, its
tag. Reading creates only values of the kinds listed here: no class, function or module is looked up
by a name from the data.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Hashable, Mapping
from typing import Any, cast

import torch
from torch.fx.immutable_collections import immutable_dict

from abele.containers import is_dict, is_list, is_set, is_slice, is_tuple
from abele.errors import SerializationError

_PLAIN = (type(None), bool, int, str)
#: Torch's types whose values are encoded by name.
_NAMED = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def bits(value: Any) -> Hashable:
    """Return a hashable key of a value; equal keys mean bitwise equal values.

    Operators tell 0.0 from -0.0 and 1 from True, which are equal in Python. NaN equals itself.

    Args:
        value: a number, a text or the like, or a tuple, list, set or dictionary of these; any other
            hashable object is compared as Python does.
    """
    kind = cast("Any", type(value))
    if isinstance(value, complex):
        return kind, struct.pack("<2d", value.real, value.imag)
    if isinstance(value, float):
        return kind, struct.pack("<d", value)
    if is_tuple(value) or is_list(value):
        return kind, *map(bits, value)
    if is_set(value):
        return kind, frozenset(map(bits, value))
    if is_dict(value):
        return kind, frozenset((bits(key), bits(item)) for key, item in value.items())
    return kind, value


def encode(value: Any, other: Callable[[Any], Any] | None = None) -> Any:
    """Encode a value as JSON data without loss.

    Args:
        value: numbers, strings, None, torch's dtypes, devices, layouts and memory formats, slices,
            and lists, tuples, sets and dictionaries of these.
        other: encodes other values, as an object with one key; it may raise TypeError.

    Raises:
        SerializationError: a value of another kind; names its type.
    """
    if type(value) in _PLAIN:
        return value
    if type(value) is float:
        if math.isfinite(value):
            return value
        # As text; a NaN with unusual bits by its bits.
        return {"float": str(value) if bits(value) in _USUAL else struct.pack(">d", value).hex()}
    for tag, kind in _NAMED.items():
        if isinstance(value, kind):
            return {tag: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    encoded = _container(value, other)
    if encoded is not None:
        return encoded
    if other is not None:
        return other(value)
    raise SerializationError(
        f"A value of type {type(value).__name__} cannot be stored, found {value!r}. What can be: "
        "numbers, strings, None, dtypes, devices, and containers of these."
    )


_USUAL = {bits(value) for value in (math.inf, -math.inf, math.nan)}


def _container(value: Any, other: Callable[[Any], Any] | None) -> Any:
    if isinstance(value, complex):
        return {"complex": [encode(value.real), encode(value.imag)]}
    if is_slice(value):
        return {"slice": [encode(part, other) for part in (value.start, value.stop, value.step)]}
    if is_tuple(value) and not hasattr(value, "_fields"):
        return {"tuple": [encode(item, other) for item in value]}
    if is_list(value):
        return [encode(item, other) for item in value]
    if is_set(value):
        tag = "set" if isinstance(value, set) else "frozenset"
        # Sets iterate in an order that changes from one process to the next.
        return {tag: sorted((encode(item, other) for item in value), key=str)}
    if type(value) is dict or isinstance(value, immutable_dict):
        items = cast("dict[Any, Any]", value).items()
        return {"dict": [[encode(k, other), encode(v, other)] for k, v in items]}
    return None


def decode(data: Any, others: Mapping[str, Callable[[Any], Any]] | None = None) -> Any:
    """Decode a value from the JSON data of ``encode``.

    Args:
        data: what ``json.loads`` returned.
        others: decode values of the caller's own tags.

    Raises:
        SerializationError: an unknown tag, or a name torch does not have.
    """
    others = others or {}
    if type(data) in (*_PLAIN, float):
        return data
    if is_list(data):
        return [decode(item, others) for item in data]
    if not is_dict(data) or len(data) != 1:
        raise SerializationError(f"Expected an object with one key, found {data!r}.")
    ((tag, content),) = data.items()
    if tag in others:
        return others[tag](content)
    if tag in _NAMED:
        return _named(tag, content)
    if tag == "device":
        return torch.device(content)
    if tag == "float":
        if len(content) < 16:
            return float(content)
        return struct.unpack(">d", bytes.fromhex(content))[0]
    if tag == "dict":
        return {decode(key, others): decode(value, others) for key, value in content}
    if tag in _FROM_LIST:
        return _FROM_LIST[tag]([decode(item, others) for item in content])
    raise SerializationError(f"Unknown kind of value {tag!r}.")


_FROM_LIST: dict[str, Callable[[list[Any]], Any]] = {
    "complex": lambda parts: complex(*parts),
    "slice": lambda parts: slice(*parts),
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}


def _named(tag: str, name: Any) -> Any:
    # Through the dictionary: a name must not reach any other attribute of torch.
    value = vars(torch).get(name) if isinstance(name, str) else None
    if not isinstance(value, _NAMED[tag]):
        raise SerializationError(f"torch has no {tag} called {name!r}.")
    return value


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a dense tensor in row-major order, without a copy if possible.

    Args:
        tensor: of any shape, dtype and device.
    """
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    # As bytes: numpy has no bfloat16. The view keeps the tensor's memory alive and copies nothing.
    return flat.view(torch.uint8).numpy().data

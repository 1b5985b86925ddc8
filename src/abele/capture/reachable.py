"""Traversal of Python containers, objects and functions, with names of their parts.

Code that keeps tensors keeps them somewhere: an attribute, a list, a dictionary of results, a
variable of an enclosing function. This module finds them.
"""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from abele import libraries
from abele.containers import is_array, is_dict, is_set, items_of

Parts = Iterator[tuple[str, Any]]

# Objects of these hold nothing that forward computes with, and may hold half the process.
_OPAQUE = (set(sys.stdlib_module_names) | {"tqdm"}) - {
    "__main__",
    "argparse",
    "collections",
    "queue",
    "types",
}
_SEQUENCES: Any = (list, tuple, collections.deque)  # of items of any type


def parts(value: Any) -> Parts:
    """Yield the values in a container, object or function, each with its access path as text.

    Modules hold their attributes, functions what they enclose and their defaults. Tensors, arrays
    of numbers, classes and modules of Python hold nothing.
    """
    if isinstance(value, torch.Tensor | type | types.ModuleType | enum.Enum):
        return
    yield from _items(value)
    yield from attributes(value)


def _items(value: Any) -> Parts:
    if is_dict(value):
        yield from (  # the text of a tensor, by which optimizers have their state, takes long
            ("[a tensor]" if isinstance(key, torch.Tensor) else f"[{key!r}]", part)
            for key, part in items_of(value)
        )
    elif isinstance(value, _SEQUENCES):
        names = getattr(value, "_fields", None)
        labels = [f".{name}" for name in names] if names else map("[{}]".format, itertools.count())
        yield from zip(labels, list(value), strict=False)
    elif is_set(value):
        yield from (("{...}", part) for part in list(value))
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, types.MethodType):
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif is_array(value) and value.dtype.hasobject:
        yield from ((f".flat[{index}]", part) for index, part in enumerate(value.flat))


def attributes(value: object) -> Parts:
    """Yield the attributes of an object of a user's class, or of a module."""
    if not has_attributes(value):
        return
    yield from ((f".{name}", part) for name, part in list(attributes_of(value).items()))
    for name in _slots(type(value)):
        try:
            yield f".{name}", object.__getattribute__(value, name)
        except AttributeError:  # not set
            continue


def _is_opaque(module: str) -> bool:
    return module.partition(".")[0] in _OPAQUE or libraries.has_module(module)


def has_attributes(value: object) -> bool:
    """Return whether ``attributes`` looks into an object, even if no attribute is set yet."""
    kind = type(value)
    if _is_opaque(kind.__module__) and not isinstance(value, torch.nn.Module):
        return False
    return kind.__dictoffset__ != 0 or bool(_slots(kind))


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the dictionary of an object's attributes; an empty one if it has none.

    Read past ``__getattribute__``, which classes override to do something at every reading.
    """
    try:
        space = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return space if is_dict(space) else {}


@functools.cache
def _slots(kind: type) -> tuple[str, ...]:
    slots: list[str] = []
    for each in kind.__mro__:
        if "__slots__" in vars(each):  # without the class in names of private attributes
            found = vars(each).items()
            slots += [name for name, p in found if isinstance(p, types.MemberDescriptorType)]
    return tuple(slots)


def cells(function: types.FunctionType) -> list[Any]:
    """Return the closure cells of a function, as ``parts`` yields them."""
    inside = [part for _, part in _of_function(function)]
    return [*(function.__closure__ or ()), function.__dict__, *inside] if inside else []


def _of_function(function: types.FunctionType) -> Parts:
    if _is_opaque(function.__module__ or "torch"):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__
    yield ".__wrapped__", getattr(function, "__wrapped__", None)
    yield from ((f".{name}", part) for name, part in list(function.__dict__.items()))


def walk(value: Any, name: str, enter: Callable[[Any], bool]) -> Parts:
    """Yield a value and all values reachable from it, depth first, once, with access paths."""
    seen: set[int] = set()
    kept: list[Any] = []  # so that no identity is used twice meanwhile
    stack = [(name, value)]
    while stack:
        path, current = stack.pop()
        yield path, current
        if id(current) in seen or not enter(current):
            continue
        seen.add(id(current))
        kept.append(current)
        stack += [(f"{path}{label}", part) for label, part in reversed(list(parts(current)))]

"""Objects that hold the tensors of a batch, among the arguments of a call.

    step(batch), with batch.x and batch.y   ->   two inputs of a program

Such an object is another one at each call. It is taken apart like a dictionary, if nothing but
tensors and plain values can be reached from it; the traced call gets a copy. So are objects that a
call returns.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch

from abele import _torch
from abele.capture import reachable
from abele.functions.frames import PLAIN
from abele.functions.varying import Unread

_Structure = tuple[Any, tuple[Any, ...]]
_DEPTH = 4
_HELD, _KNOWN = (torch.Tensor, np.ndarray), (*PLAIN, _torch.FakeTensor, Unread)
_MAKERS = (object.__new__, types.SimpleNamespace.__new__)  # that need no arguments


def flatten(
    value: Any, is_whole: Callable[[Any], bool] | None = None
) -> tuple[list[Any], _Structure, list[Any]]:
    """Return the leaves of nested containers and batches, their structure, and the batches.

    Objects of which ``is_whole`` is true are leaves.
    """
    outer, structure = _torch.flatten(value)
    leaves, kinds, found = list[Any](), list[Any](), list[Any]()
    for leaf in outer:
        fields = _fields(leaf)
        if fields is None or (is_whole is not None and is_whole(leaf)):
            leaves.append(leaf)
            kinds.append(None)
            continue
        parts, inner, inside = flatten([*fields.values()], is_whole)
        leaves += parts
        kinds.append((type(leaf), (*fields,), inner, len(parts)))
        found += [leaf, *inside]
    return leaves, (structure, tuple(kinds)), found


def unflatten(leaves: Sequence[Any], structure: _Structure) -> tuple[Any, list[Any]]:
    """Return the nested value of a structure with given leaves, and the new batches in it."""
    if not any(structure[1]):
        return _torch.unflatten(leaves, structure[0]), []
    outer, made = list[Any](), list[Any]()
    place = 0
    for kind in structure[1]:
        if kind is None:
            outer.append(leaves[place])
            place += 1
            continue
        cls, names, inner, count = kind
        values, inside = unflatten(leaves[place : place + count], inner)
        place += count
        batch = cls.__new__(cls)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(batch, name, value)
        outer.append(batch)
        made += [batch, *inside]
    return _torch.unflatten(outer, structure[0]), made


def _fields(value: Any, depth: int = _DEPTH) -> dict[str, Any] | None:
    """Return the attributes of an object that holds tensors; None for other objects."""
    kind = cast("Any", type(value))
    others = (*PLAIN, torch.Tensor, torch.nn.Module, torch.optim.Optimizer, type)
    if isinstance(value, others) or not depth or kind.__new__ not in _MAKERS:
        return None
    if callable(value) or not reachable.has_attributes(value):
        return None
    fields = {label[1:]: part for label, part in reachable.attributes(value)}
    parts, _ = _torch.flatten([*fields.values()])
    for part in parts:
        known = issubclass(type(part), _KNOWN) or type(part) in _HELD
        if not known and _fields(part, depth - 1) is None:
            return None
    return fields if any(not issubclass(type(part), PLAIN) for part in parts) else None

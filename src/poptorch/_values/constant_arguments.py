"""Checks that arguments compiled into the program have not changed since the first call.

Numbers and texts do not change. Arrays, objects and functions do: the same object may hold other
values at the next call, and the program would go on with the first ones.
"""

import decimal
import enum
import struct
import types
from collections.abc import Iterator, Set
from typing import Any

import numpy
import torch

from abele.capture import reachable
from abele.storage.values import bits
from abele.trace.module_state import plain
from poptorch._error import error

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_FIXED = (*_PLAIN, torch.dtype, torch.device, torch.Size, range, enum.Enum)
_BYTES = (bytearray, memoryview)
_ARRAYS = (torch.Tensor, numpy.ndarray)
_NOTHING = object()


def cannot_change(value: Any) -> bool:
    """Return whether a constant is a number, a text or the like, which no call can find changed."""
    return isinstance(value, _FIXED)


def same_bits(before: Any, now: Any) -> bool:
    """Return whether two constants without parts give the same program.

    Bits count, because operators tell 0.0 from -0.0 and 1 from True. NaN equals itself.

    Args:
        before: of the first call.
        now: of a later call.
    """
    return before is now or bits(before) == bits(now)


def told_apart(before: Any, now: Any) -> tuple[str, str]:
    """Return two constants as text; NaN that are written alike with their bits."""
    texts = repr(before), repr(now)
    if texts[0] != texts[1] or not isinstance(before, float):
        return texts
    first, second = (struct.pack(">d", value).hex() for value in (before, now))
    return f"{texts[0]} (bits {first})", f"{texts[1]} (bits {second})"


class Contents:
    """Value of a constant argument at the first call.

    Args:
        value: the argument; arrays and tensors in it are copied.
        name: of the argument.
        known: ids of tensors that are no constants: inputs, and the state of the model.
        public_only: attributes whose names begin with an underscore do not count.

    Raises:
        poptorch.Error: it is an iterator, which gives its values once, or a set of tensors.
    """

    def __init__(self, value: Any, name: str, exempt: Set[int], *, public_only: bool = False):
        if isinstance(value, Iterator):
            raise error(
                f"Argument {name} of type {type(value).__name__} gives its values once, and a "
                "program runs many times. Pass a tensor, or a list of them."
            )
        self._name, self._public_only = name, public_only
        self._contents: dict[str, Any] = {}
        for path, part in self._walk(value, exempt):
            if isinstance(part, set | frozenset) and any(isinstance(x, _ARRAYS) for x in part):
                raise error(f"{path} is a set of tensors, which has no order. Pass a list of them.")
            self._contents[path] = _copied(part)

    def check(self, value: Any, exempt: Set[int]) -> None:
        """Compare the argument of a later call.

        Raises:
            poptorch.Error: naming the part that differs.
        """
        left = dict(self._contents)
        for path, part in self._walk(value, exempt):
            before = left.pop(path, _NOTHING)
            if not _same(before, part):
                raise _changed(path, before, part)
        for path, before in left.items():
            raise _changed(path, before, _NOTHING)

    def _walk(self, value: Any, exempt: Set[int]) -> Iterator[tuple[str, Any]]:
        def is_entered(part: Any) -> bool:
            return id(part) not in exempt and not isinstance(part, set | frozenset)

        for path, part in reachable.walk(value, self._name, is_entered):
            hidden = self._public_only and "._" in path[len(self._name) :]
            if id(part) not in exempt and not hidden:
                yield path, part


def _copied(value: Any) -> Any:
    """Return what a part is compared with later; that of containers are their own parts."""
    if isinstance(value, torch.Tensor):
        return plain(value).clone()
    if isinstance(value, numpy.ndarray):
        return type(value) if value.dtype.hasobject else value.copy()
    if isinstance(value, _BYTES):
        return type(value), bytes(value)
    return set(value) if isinstance(value, set) else value


def _same(before: Any, now: Any) -> bool:
    if isinstance(before, torch.Tensor):
        return isinstance(now, torch.Tensor) and _same_bytes(before, plain(now))
    if isinstance(now, numpy.ndarray) and now.dtype.hasobject:
        return before is type(now)
    if isinstance(before, numpy.ndarray):
        same_kind = isinstance(now, numpy.ndarray) and now.dtype == before.dtype
        return same_kind and now.shape == before.shape and now.tobytes() == before.tobytes()
    if isinstance(now, _BYTES):
        return before == (type(now), bytes(now))
    if type(before) is not type(now):
        return False
    if isinstance(now, numpy.generic):
        return before.dtype == now.dtype and before.tobytes() == now.tobytes()
    if isinstance(now, decimal.Decimal):
        return before.as_tuple() == now.as_tuple()  # with the sign of zero
    if isinstance(now, types.FunctionType):  # what it encloses are parts
        return before.__code__ == now.__code__ and before.__globals__ is now.__globals__
    if isinstance(now, (*_PLAIN, set, frozenset)):
        return same_bits(before, now)
    return before is now or _equal(before, now)


def _equal(left: Any, right: Any) -> bool:
    """Return whether two objects of one class are equal, apart from the parts that both have."""
    has_parts = next(reachable.parts(right), None) is not None
    if has_parts and type(right).__eq__ in (object.__eq__, list.__eq__, tuple.__eq__, dict.__eq__):
        return True
    try:
        return bool(left == right)
    except Exception:  # noqa: BLE001 - a comparison of arrays as if they were numbers
        return has_parts


def _same_bytes(before: torch.Tensor, now: torch.Tensor) -> bool:
    if (before.shape, before.dtype, before.layout) != (now.shape, now.dtype, now.layout):
        return False
    if now.layout is not torch.strided or now.device != before.device:
        return False
    # Bytes, because NaN differs from itself.
    left, right = (each.contiguous().reshape(-1).view(torch.uint8) for each in (before, now))
    return torch.equal(left, right)


def _changed(path: str, before: Any, now: Any) -> Exception:
    advice = "Pass what changes as a tensor."
    if isinstance(before, _ARRAYS) or isinstance(now, _ARRAYS):
        advice = (
            "Pass what changes as tensors, alone or in tuples, lists and dictionaries, or in a "
            "type with a parser: poptorch.registerCustomArgParser(...)."
        )
    return error(
        f"Value mismatch for {path}: expected {_described(before)}, found {_described(now)}. What "
        "is no tensor argument is a constant of the program, which was compiled for the first "
        f"call's. {advice} Or create a new wrapper, or call destroy() on this one, to compile for "
        "other constants."
    )


def _described(value: Any) -> str:
    if value is _NOTHING:
        return "nothing"
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)} {value.dtype} ({_beginning(value.flatten())})"
    if isinstance(value, numpy.ndarray):
        return f"an array {list(value.shape)} {value.dtype} ({_beginning(value.ravel())})"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _beginning(flat: Any) -> str:
    more = ", ..." if len(flat) > 4 else ""
    return ", ".join(str(number) for number in flat[:4].tolist()) + more

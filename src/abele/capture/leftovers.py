"""Cleanup of traced tensors that forward stores in the user's objects.

Forward runs once on tensors without data. What it keeps of them, in attributes, lists,
dictionaries or variables of enclosing functions, would fail at the next use outside the program.
What follows from constants alone gets its data; everything else is put back as it was. Globals,
attributes of classes and caches of ``functools`` are not looked at.
"""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, cast

import torch

from abele import _torch
from abele._torch.replaced import original_of
from abele.capture import reachable
from abele.containers import is_dict, items_of

ValueOf = Callable[[torch.Tensor], torch.Tensor | None]
#: Stands for the value of an entry that an object does not have.
ABSENT: Any = object()
_UNDER_FAKE = object()  # stands for what a dictionary holds under a tensor without data
# Attributes of modules that hold their state, which is no leftover of forward.
_STATE = ("_parameters", "_buffers")
_FILLED = (*_STATE, "_modules")
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
# Container types with items of any type.
_LISTS: Any = (list, collections.deque)
_SETS: Any = (set,)
_FIXED: Any = (tuple, frozenset)
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, torch.Tensor})
_MOST_HOLDERS = 200_000


class Leftovers:
    """Objects that forward can reach, with a snapshot of their contents.

    Args:
        roots: the module, and further objects passed to forward.
    """

    def __init__(self, *roots: Any):
        self._roots = roots
        self._before: dict[int, tuple[Any, dict[Any, Any]]] = {}
        for holder in _holders(roots):
            self._before[id(holder)] = (holder, _entries(holder))

    def objects(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield the objects that are no containers, and their attributes before forward ran."""
        for holder, before in self._before.values():
            if not isinstance(holder, (dict, set, types.CellType, *_LISTS)):
                yield holder, before

    def reassigned(self) -> Iterator[tuple[Any, str, torch.Tensor, torch.Tensor]]:
        """Yield attributes whose tensor became one without data: owner, name, both tensors."""
        for holder, before in self.objects():
            for name, now in _entries(holder).items():
                old = before.get(name)
                is_new = isinstance(now, _torch.FakeTensor) and now is not old
                if is_new and isinstance(old, torch.Tensor):
                    yield holder, name, old, now

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that the objects held before forward ran, with the module's state."""
        for _, before in self._before.values():
            yield from tensors_of(before.values())

    def changes(self) -> Iterator[tuple[Any, Any, Any, Any]]:
        """Yield changed entries of objects: holder, key, value before and now.

        A value that is absent is ``ABSENT``.
        """
        for holder, before in self._before.values():
            now = _entries(holder)
            for key in {**before, **now}:
                old, new = before.get(key, ABSENT), now.get(key, ABSENT)
                if old is not new:
                    yield holder, key, old, new

    def put_back(self) -> None:
        """Restore the contents that all objects had."""
        for holder, before in self._before.values():
            now = _entries(holder)
            if len(now) == len(before) and all(now.get(k, ABSENT) is v for k, v in before.items()):
                continue
            _restore(holder, before)

    @contextlib.contextmanager
    def mended(self) -> Generator[None]:
        """Remove traced tensors from the user's objects at the end of a ``with`` block."""
        try:
            yield
        finally:  # backward leaves some, too, and so does a forward that fails
            self.mend(lambda tensor: None)

    def mend(self, value_of: ValueOf, *, state: bool = True) -> None:
        """Replace or remove all traced tensors in the user's objects.

        Args:
            value_of: the value of a tensor that follows from constants, else None.
            state: also in parameters and buffers; not while these are substituted.
        """
        real = _Real(value_of)
        unusable: set[int] = set()
        holders = waiting = list(_holders(self._roots, state=state))
        while True:
            # What is held before what holds it; once more, because some are held twice.
            damaged = [h for h in reversed(waiting) if self._mend_one(h, real, unusable)]
            if not damaged:
                break
            gone = set(map(id, damaged))
            waiting = [holder for holder in waiting if id(holder) not in gone]
        for holder in holders:
            if id(holder) not in unusable:
                _fill(holder, real)

    def _mend_one(self, holder: Any, real: _Real, unusable: set[int]) -> bool:
        """Restore an object if it holds unusable tensors; return whether it did."""
        if not any(real.is_unusable(v, unusable) for v in _entries(holder).values()):
            return False
        if id(holder) in self._before:
            _put_back(holder, self._before[id(holder)][1], real, unusable)
        else:  # new: whoever holds it cannot keep it
            unusable.add(id(holder))
        return True


class _Real:
    """A map from traced tensors to real tensors of equal value."""

    def __init__(self, value_of: ValueOf):
        self._value_of = value_of
        # With the tensors, so that no identity is used twice meanwhile.
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if id(tensor) not in self._known:
            value = self._value_of(tensor)
            with _torch.outside_the_trace():
                known = None if value is None else value.detach().clone()
            self._known[id(tensor)] = (tensor, known)
        return self._known[id(tensor)][1]

    def is_unusable(self, value: Any, unusable: set[int]) -> bool:
        if isinstance(value, _torch.FakeTensor):
            return self.of(value) is None
        if isinstance(value, _FIXED):
            return any(self.is_unusable(part, unusable) for part in value)
        return value is _UNDER_FAKE or id(value) in unusable

    def instead_of(self, value: Any) -> Any:
        """Return a nested value with traced tensors replaced; the same object if it has none."""
        if isinstance(value, _torch.FakeTensor):
            return self.of(value)
        if not isinstance(value, _FIXED):
            return value
        parts = [self.instead_of(part) for part in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        make = cast("Any", type(value))
        return make(*parts) if hasattr(value, "_fields") else make(parts)


def tensors_of(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among values, and in tuples among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple):
            yield from tensors_of(cast("tuple[Any, ...]", value))


# -- what holds other values, and can be given others ---------------------------------------------


def _holders(roots: tuple[Any, ...], *, state: bool = True) -> Iterator[Any]:
    """Yield every container or object reachable from ``roots``, parents first."""
    seen: set[int] = set()
    kept: list[Any] = []
    stack: list[Any] = list(reversed(roots))
    while stack and len(kept) < _MOST_HOLDERS:
        value = stack.pop()
        if type(value) in _PLAIN or id(value) in seen or isinstance(value, torch.Tensor):
            continue
        seen.add(id(value))
        kept.append(value)
        if _can_hold(value):
            yield value
        stack += [part for part in reversed(_contents(value, state)) if type(part) not in _PLAIN]
        if isinstance(value, (dict, set, *_LISTS)) and reachable.has_attributes(value):
            stack.append(reachable.attributes_of(value))


def _can_hold(value: Any) -> bool:
    if isinstance(value, (dict, set, types.CellType, *_LISTS)):
        return True
    kinds = type | types.FunctionType
    return not isinstance(value, kinds) and reachable.has_attributes(value)


def _contents(value: Any, state: bool) -> list[Any]:
    if isinstance(value, types.FunctionType):
        return reachable.cells(value)
    if isinstance(value, types.CellType):
        return [*_entries(value).values()]
    if isinstance(value, torch.nn.Module):
        left_out = () if state else _STATE
        return [
            part
            for key, part in _attributes(value).items()
            # Each module has a dozen dictionaries of torch's, nearly all empty.
            if key not in left_out and (key not in _OF_EVERY_MODULE or key in _FILLED or part)
        ]
    return [part for _, part in reachable.parts(value)]


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, without what stands for its methods during a trace."""
    found = {label[1:]: part for label, part in reachable.attributes(value)}
    return {name: part for name, part in found.items() if original_of(part) is part}


def _entries(holder: Any) -> dict[Any, Any]:
    """Return the items or attributes of a container or object, by key."""
    if is_dict(holder):
        return {
            key: _UNDER_FAKE if isinstance(key, _torch.FakeTensor) else value
            for key, value in items_of(holder)
        }
    if isinstance(holder, _LISTS):
        return dict(enumerate(list(holder)))
    if isinstance(holder, _SETS):
        return {id(part): part for part in list(holder)}
    if isinstance(holder, types.CellType):
        try:
            return {"cell_contents": holder.cell_contents}
        except ValueError:  # not assigned
            return {}
    return _attributes(holder)


def _fill(holder: Any, real: _Real) -> None:
    """Replace traced tensors in a container or object by real tensors."""
    for key, value in _entries(holder).items():
        new = real.instead_of(value)
        if new is not value:
            write(holder, key, new, value)


def _restore(holder: Any, before: dict[Any, Any]) -> None:
    """Give a container or object the entries that it had."""
    if isinstance(holder, _LISTS):
        holder.clear()
        holder.extend(before.values())
        return
    now = _entries(holder)
    for key in now.keys() - before.keys():
        write(holder, key, ABSENT, now[key])
    for key, value in before.items():
        if now.get(key, ABSENT) is not value:
            write(holder, key, value, now.get(key, ABSENT))


def _put_back(holder: Any, before: dict[Any, Any], real: _Real, unusable: set[int]) -> None:
    """Remove traced tensors from a container or object, and restore earlier values.

    Objects and lists go back as a whole, because their parts belong together: a flag that says
    that a table was computed, and the table.
    """
    now = _entries(holder)
    if isinstance(holder, _LISTS):
        holder.clear()
        holder.extend(before.values())
        return
    alone = isinstance(holder, dict | set)
    for key, value in now.items():
        old = before.get(key, ABSENT)
        if old is not value and (not alone or real.is_unusable(value, unusable)):
            write(holder, key, old, value)
    if not alone:
        for key in before.keys() - now.keys():
            write(holder, key, before[key], ABSENT)


def write(holder: Any, key: Any, new: Any, old: Any) -> None:
    """Replace a value in a container or object; ``ABSENT`` deletes it.

    Args:
        holder: a dictionary, list, set, variable of a function, class or object.
        key: of the entry.
        new: its value from now on.
        old: its present value.
    """
    if isinstance(holder, _SETS):
        holder.discard(old)
        if new is not ABSENT:
            holder.add(new)
    elif isinstance(holder, (dict, *_LISTS)):
        name = "__delitem__" if new is ABSENT else "__setitem__"
        # Past __setitem__ of a user's class, which may keep the value elsewhere.
        found = (vars(kind)[name] for kind in type(holder).__mro__ if name in vars(kind))
        built_in = next(each for each in found if not isinstance(each, types.FunctionType))
        built_in(holder, *((key,) if new is ABSENT else (key, new)))
    else:
        # Past __setattr__ of modules, which sorts parameters out, and of frozen dataclasses.
        kind: Any = type if isinstance(holder, type) else object
        with contextlib.suppress(AttributeError, TypeError):
            if new is ABSENT:
                kind.__delattr__(holder, key)
            else:
                kind.__setattr__(holder, key, new)

"""Statements of a compiled function that Python runs after each call of its program.

    loss.backward(); losses.append(loss.item())   ->   traced: loss.backward(); record(loss)
                                                       host:   losses.append(loss.item())

They run with the values that they had at their place. ``division`` finds them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from abele import _torch
from abele.capture.leftovers import write
from abele.containers import is_dict
from abele.errors import CaptureError
from abele.functions.state import holds_tensors
from abele.functions.varying import Opaque

RETURNED = "__abele_returned"


@dataclasses.dataclass
class Host:
    """A function in two parts.

    Attributes:
        remaining: the function without the statements of the host, which it records instead.
        statements: functions of the host's statements; each returns the variables that it sets.
        late: which statements run at their own place, because nothing traced follows them.
        variables: those of the function whose objects the statements change.
        outside: lines that change what else they do, by the names of attributes and variables.
        sets: those of ``outside`` that are attributes.
        receiver: the name of a method's first argument, which the division has looked at.
        shared: returns a value whose containers are ``Shared`` if they exist outside of a call.
        fresh: by event and variable, the ``id`` of a container that the traced call has made.
        events: statements that the latest call of ``remaining`` met, with the variables they read.
    """

    remaining: Callable[..., Any]
    statements: Sequence[Callable[..., dict[str, Any]]]
    late: Sequence[bool]
    variables: frozenset[str]
    outside: Mapping[str, int]
    sets: frozenset[str]
    events: list[tuple[int, dict[str, Any]]]
    receiver: str = ""
    shared: Callable[[Any], Any] = lambda value: value
    fresh: dict[tuple[int, str], int] = dataclasses.field(default_factory=dict[Any, int])
    _contents: list[tuple[Any, list[int]]] = dataclasses.field(default_factory=list[Any])

    def start(self) -> None:
        """Forget the events of an earlier trace."""
        self.events.clear()
        self.fresh.clear()
        self._contents.clear()

    def has_early_events(self) -> bool:
        """Return whether a statement runs later than where it is written."""
        return not all(self.late[index] for index, _ in self.events)

    @contextlib.contextmanager
    def hiding(self, objects: Iterable[tuple[Any, dict[str, Any]]]) -> Generator[None]:
        """Put stand-ins into the attributes that its statements set, in a ``with`` block.

        Args:
            objects: those that the function reaches, and the attributes that they had.

        Raises:
            CaptureError: on leaving, if the value of one was used.
        """
        held: list[HeldAttribute] = []
        with contextlib.ExitStack() as stack:
            for holder, before in objects:
                for name in self.sets & before.keys():
                    stack.callback(write, holder, name, before[name], None)
                    held.append(HeldAttribute(name, self.outside[name], before[name]))
                    before[name] = held[-1]
                    write(holder, name, held[-1], None)
            try:
                yield
            except TypeError as error:  # of a function of torch, which takes numbers alone
                if HeldAttribute.__name__ in (text := str(error)):
                    name = min((n for n in self.sets if n in text), default=min(self.sets))
                    Held(name, self.outside[name]).refuse()
                raise
        for each in held:
            if each.error is not None:  # which the user's code may have caught
                raise each.error

    def check(self) -> None:
        """Refuse containers that the traced part changed after the host had read them.

        Raises:
            CaptureError: the order of their changes would be another one.
        """
        for value, before in self._contents:
            if _parts(value) != before:
                raise CaptureError(
                    f"The function changes a {type(value).__name__} both with numbers of tensors "
                    "and otherwise, by two names. Use one name."
                )

    def record(self, index: int, variables: dict[str, Any]) -> None:
        """Note that a traced call comes to a statement of the host."""
        for name, value in variables.items():
            variables[name] = self.shared(value)
            if variables[name] is value and type(value) in (list, dict, set):
                if any(self.shared(part) is not part for part in _values(value)):
                    raise CaptureError(
                        f"A {type(value).__name__} that the call makes, {name}, holds a list, "
                        "dictionary or set from outside of it, whose changes would go to a copy. "
                        "Give that one a name of its own."
                    )
                self.fresh[len(self.events), name] = id(value)
                self._contents.append((value, _parts(value)))
        if not self.late[index]:
            for name, value in variables.items():
                if name != self.receiver:
                    _check_early_value(name, value)
                is_tensor = isinstance(value, torch.Tensor)
                variables[name] = value.detach().clone() if is_tensor else value
        self.events.append((index, variables))

    def run(
        self,
        events: Sequence[tuple[int, Mapping[str, Any]]],
        result: Any,
        before: Callable[[int], None],
    ) -> Any:
        """Run the host's statements of a call; return the function's result.

        Args:
            events: those of the traced call, with the values of this one.
            result: what the traced part returned.
            before: called with the number of events so far before each of them, and at the end.
        """
        bound: dict[str, Any] = {}
        made: dict[int, Any] = {}  # one object for each that the traced call has made
        for place, (index, variables) in enumerate([*events, (-1, {})]):
            before(place)
            if index < 0:
                break
            now: dict[str, Any] = {}
            for name, value in variables.items():
                key = self.fresh.get((place, name))
                value = value if key is None else made.setdefault(key, value)
                held = isinstance(value, Held)
                now[name] = bound.get(name) if held else value
            after = self.statements[index](**now)
            if RETURNED in after:
                return after[RETURNED]
            bound |= after
        return result


class Shared:
    """A list, dictionary or set of the user's, which is not to be copied: it, or its place."""

    def __init__(self, value: Any):
        self.value = value


def _parts(value: Any) -> list[int]:
    return list(map(id, _values(value)))


def _values(value: Any) -> Iterable[Any]:
    return value.values() if is_dict(value) else value


class Held(Opaque):
    """Stands in the traced part for a variable that a statement of the host has set."""

    def __init__(self, name: str, line: int):
        self._about, self.error = (name, line), None

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        self.refuse()

    def refuse(self) -> Any:
        """Raise an error: a program has no values while it is captured."""
        name, line = self._about
        self.error = CaptureError(
            f"The function computes with {name}, which line {line} sets after the program, maybe "
            "to a number of a tensor. Use tensor operations such as torch.where."
        )
        raise self.error

    __hash__ = object.__hash__


class HeldAttribute(Held):
    """A stand-in for an attribute of an object, which the traced part must not pass on.

    Other threads than the one that captures read the attribute's value.
    """

    def __init__(self, name: str, line: int, value: Any):
        super().__init__(name, line)
        self._value, self._thread = value, threading.get_ident()

    def __getattr__(self, attribute: str) -> Any:
        is_own = threading.get_ident() == self._thread
        return super().__getattr__(attribute) if is_own else getattr(self._value, attribute)

    def used(self, operator: str, *args: Any, **kwargs: Any) -> Any:
        """Return what the value's method of this name does, in other threads."""
        is_own = threading.get_ident() == self._thread
        return self.refuse() if is_own else getattr(self._value, operator)(*args, **kwargs)


def _check_early_value(name: str, value: Any) -> None:
    """Refuse an object whose tensors the function may go on to change."""
    leaves = [] if isinstance(value, torch.Tensor) else _torch.flatten(value)[0]
    if any(holds_tensors(e) for e in leaves if not isinstance(e, torch.Tensor | np.ndarray)):
        raise CaptureError(
            f"A statement with a number of a tensor, or a change of a Python object, uses "
            f"{name} before the function goes on to change it. Put the statement last."
        )

"""Scopes: module paths and other marks recorded on each traced node.

While forward runs, scopes open and close and marks change. Every node traced since the last change
gets the scopes and marks of that moment as ``node.meta["custom"]``: ``scope`` (names joined by
``/``, empty outside all of them) and one entry per mark. That is the one part of a node's meta that
survives re-tracing. Outside a capture all of this does nothing.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from abele import _torch
from abele.contexts import held

_moved = contextvars.ContextVar("nodes to be moved", default=False)
_active: contextvars.ContextVar[_Recorder | None] = contextvars.ContextVar("scopes", default=None)


class _Recorder:
    def __init__(self):
        self.path: list[str] = []
        self.marks: dict[str, Any] = {}
        self.stack: str | None = None
        self._last: torch.fx.Node | None = None

    def flush(self) -> None:
        """Set the open scopes and marks on every node traced since the last call."""
        entry = {"scope": "/".join(self.path), **self.marks}
        newest = None
        for node in reversed(_torch.traced_nodes()):
            newest = newest or node
            if node is self._last:
                break
            node.meta["custom"] = {**entry, **node.meta.get("custom", {})}
            if self.stack:
                node.meta["stack_trace"] = self.stack
        self._last = newest

    def forget_erased(self) -> None:
        """Resume recording after the newest remaining node, once nodes were erased."""
        self._last = next(reversed(_torch.traced_nodes()), None)


@contextlib.contextmanager
def recording(module_names: Mapping[torch.nn.Module, str] | None = None) -> Generator[None]:
    """Record scopes and marks on traced nodes in a ``with`` block.

    Args:
        module_names: modules whose calls open a scope, with their path (``encoder.0``).
    """
    recorder = _Recorder()
    with held(_active, recorder):
        with _module_scopes(recorder, module_names or {}):
            yield
        recorder.flush()


@contextlib.contextmanager
def _module_scopes(recorder: _Recorder, names: Mapping[torch.nn.Module, str]) -> Generator[None]:
    outer: list[list[str]] = []

    def here() -> bool:
        """Return whether this thread captures, as module hooks are global to the process."""
        return _active.get() is recorder

    def enter(module: torch.nn.Module, args: Any) -> None:
        if here() and names.get(module):
            recorder.flush()
            outer.append(recorder.path)
            recorder.path = names[module].split(".")

    def leave(module: torch.nn.Module, args: Any, result: Any) -> None:
        if here() and names.get(module) and outer:
            recorder.flush()
            recorder.path = outer.pop()

    handles = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def push(name: str) -> None:
    """Open a scope, such as a module path, inside the current one."""
    recorder = _active.get()
    if recorder is not None:
        recorder.flush()
        recorder.path = [*recorder.path, name]


def pop() -> None:
    """Close the innermost scope of traced nodes."""
    recorder = _active.get()
    if recorder is not None:
        recorder.flush()
        recorder.path = recorder.path[:-1]


@contextlib.contextmanager
def replaying() -> Generator[Callable[[Mapping[str, Any], str | None], None]]:
    """Mark calls within the context as repetitions of a recorded forward.

    Yields:
        A function that says what was in force at the operators to come: the scope and the marks
        that their nodes had, and the line of the user's that they belong to.
    """
    recorder = _active.get()
    if recorder is None:
        yield lambda marks, stack: None
        return
    recorder.flush()
    outer = recorder.path, recorder.marks, recorder.stack

    def continue_at(marks: Mapping[str, Any], stack: str | None) -> None:
        recorder.flush()
        inner = {key: value for key, value in marks.items() if key != "scope"}
        recorder.path = [*outer[0], *filter(None, marks.get("scope", "").split("/"))]
        recorder.marks, recorder.stack = {**outer[1], **inner}, stack

    try:
        yield continue_at
    finally:
        recorder.flush()
        recorder.path, recorder.marks, recorder.stack = outer


@contextlib.contextmanager
def nodes_to_be_moved() -> Generator[None]:
    """Declare that nodes traced in a ``with`` block will leave the graph."""
    recorder = _active.get()
    if recorder is not None:
        recorder.flush()
    with held(_moved, True):
        yield
    if recorder is not None:
        recorder.forget_erased()


def are_moved() -> bool:
    """Return whether nodes that are being traced leave the graph later."""
    return _moved.get()


def mark(key: str, value: Any) -> Any:
    """Set a mark for nodes traced from now on (None removes it); return the previous value."""
    recorder = _active.get()
    if recorder is None:
        return None
    recorder.flush()
    before = recorder.marks.pop(key, None)
    if value is not None:
        recorder.marks[key] = value
    return before


def current(key: str) -> Any:
    """Return the current value of a mark of traced nodes, or None."""
    recorder = _active.get()
    return None if recorder is None else recorder.marks.get(key)

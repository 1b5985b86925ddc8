"""Behaviour of torch that is changed for as long as a context is open."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

import torch
from torch.utils import checkpoint

# -- parameters ------------------------------------------------------------------------------------


@contextlib.contextmanager
def counted_as_parameters(tensors: Iterable[torch.Tensor]) -> Generator[None]:
    """While open, ``isinstance(tensor, torch.nn.Parameter)`` is true of these tensors.

    Turning them into parameters would create new tensors. ``Module.get_parameter`` and users'
    forwards test for the class.
    """
    marked = list(tensors)
    for tensor in marked:
        tensor._is_param = True  # type: ignore[attr-defined] - what Parameter's metaclass reads
    try:
        yield
    finally:
        for tensor in marked:
            del tensor._is_param  # type: ignore[attr-defined]


# -- activation checkpoints ------------------------------------------------------------------------


@contextlib.contextmanager
def recomputed_within(context: Callable[[], Any]) -> Generator[None]:
    """While open, checkpoints of this thread compute again within a context of their own.

    Backward runs without the modes that were open in forward, and torch refuses to go on where the
    second computation saves other tensors than the first.

    Args:
        context: returns a context manager, once for each computation.
    """
    module: Any = checkpoint
    original, thread = module._checkpoint_without_reentrant_generator, threading.get_ident()

    def generator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        @functools.wraps(function)
        def again(*args: Any, **kwargs: Any) -> Any:
            with context():
                return function(*args, **kwargs)

        ours = threading.get_ident() == thread
        return original(again if ours else function, *args, **kwargs)

    module._checkpoint_without_reentrant_generator = generator
    try:
        yield
    finally:
        module._checkpoint_without_reentrant_generator = original


# -- TorchScript functions -------------------------------------------------------------------------

# ``torch.jit.script`` returns objects of a class of C++ that calls operators past every mode of
# Python's, so that no public function can replace these operators.
_Function = Callable[..., Any]
_instead: contextvars.ContextVar[Mapping[str, _Function]] = contextvars.ContextVar("scripted")


@contextlib.contextmanager
def scripted_functions_replaced(instead: Mapping[str, _Function]) -> Generator[None]:
    """While open, other functions are called in the place of some TorchScript functions.

    Args:
        instead: by ``ScriptFunction.qualified_name``.
    """
    if instead:
        _watch_calls()
    token = _instead.set(instead)
    try:
        yield
    finally:
        _instead.reset(token)


@functools.cache
def _watch_calls() -> None:
    """Look at every call from now on: several threads may capture at the same time."""
    kind: Any = torch.jit.ScriptFunction
    usual = kind.__call__

    @functools.wraps(usual)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        function = _instead.get({}).get(self.qualified_name)
        return usual(self, *args, **kwargs) if function is None else function(*args, **kwargs)

    kind.__call__ = call


# -- oneDNN ----------------------------------------------------------------------------------------

# The public ``torch.backends.mkldnn.flags`` also touches settings for Intel GPUs and warns where
# there are none.
_outer: contextvars.ContextVar[bool] = contextvars.ContextVar("outer", default=True)


def computes_half_convolutions() -> bool:
    """Return whether torch leaves convolutions of half numbers to oneDNN on this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


@contextlib.contextmanager
def without_onednn() -> Generator[None]:
    """While open, torch does not choose operators that exist for oneDNN alone."""
    token = _outer.set(torch._C._get_mkldnn_enabled())
    try:
        with _onednn(enabled=False):
            yield
    finally:
        _outer.reset(token)


def with_outer_onednn() -> contextlib.AbstractContextManager[None]:
    """Within ``without_onednn``, torch chooses as it did outside while this is open."""
    return _onednn(enabled=_outer.get())


@contextlib.contextmanager
def _onednn(*, enabled: bool) -> Generator[None]:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)

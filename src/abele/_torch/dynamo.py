"""Private names of torch's compiler front-end (Dynamo), loaded only if needed.

This project does not need the front-end, and loading it takes a second and 40 MiB, so it stays
unloaded in programs that do not use ``torch.compile``.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import sys
import types
import warnings
from collections.abc import Callable, Generator
from typing import Any, ClassVar

import torch

from abele._torch import versions

_NAME = "torch._dynamo"
# What a trace imports at its first operators: much that is hidden is defined there, and its half
# second belongs to the import, not to the first step.
_DEFINING = (
    "torch._decomp",
    "torch._refs",
    "torch._meta_registrations",
    "torch._higher_order_ops.triton_kernel_wrap",
)
_HIDING = "__dynamo_disable"  # what torch remembers on a function that it hides


@contextlib.contextmanager
def compiled_functions_run_plainly() -> Generator[None]:
    """Trace functions of ``torch.compile`` as their originals, in a ``with`` block.

    The public ``torch.compiler.set_stance("force_eager")`` is read later than the check for a
    trace, which raises unless this setting is off; then the original function runs.
    """
    if _NAME not in sys.modules:  # nothing has been compiled
        yield
        return
    config = importlib.import_module(f"{_NAME}.config")
    with warnings.catch_warnings(), config.patch(error_on_nested_fx_trace=False):
        # Module hooks record scopes; a compiled module would open its scope twice.
        about_hooks = r"Using `torch\.compile\(module\)` when there are global hooks"
        warnings.filterwarnings("ignore", about_hooks, UserWarning)
        yield


def load_when_needed() -> None:
    """Defer loading of torch's compiler front-end by optimizers and fake tensors.

    They load it at their first call, to be hidden from it or to read a setting of it. What is
    hidden runs as it is while there is nothing to hide it from. Loader workers do none of that.
    """
    if not versions.tried or multiprocessing.parent_process() is not None or _NAME in sys.modules:
        return
    for name in _DEFINING:
        importlib.import_module(name)
    untyped: Any = torch
    hidden: Any = untyped._disable_dynamo(load_when_needed)
    inner_at = hidden.__code__.co_freevars.index("fn")
    for each in gc.get_referrers(hidden.__code__):  # functions that torch has hidden so
        if isinstance(each, types.FunctionType) and each.__closure__ is not None:
            cells: Any = each.__closure__
            inner = cells[inner_at].cell_contents
            if not hasattr(inner, _HIDING) and each is not hidden:
                setattr(inner, _HIDING, _until_loaded(each, inner))
    untyped._dynamo = _Unloaded(_NAME)  # an import puts the front-end in its place


def _until_loaded(hidden: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not hasattr(sys.modules.get(_NAME), "disable"):
            return inner(*args, **kwargs)
        if getattr(inner, _HIDING, None) is run:
            delattr(inner, _HIDING)
        return hidden(*args, **kwargs)  # which hides it now

    return run


class _Unloaded(types.ModuleType):
    """A stand-in for torch's compiler front-end that loads it except for a few settings."""

    # Tensors without data read these at each operator.
    _DEFAULTS: ClassVar = {"_custom_ops_profile": None}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if _NAME not in sys.modules:
            if self.__name__ == _NAME and name == "config":
                return _Unloaded(f"{_NAME}.config")
            if self.__name__ != _NAME and name in self._DEFAULTS:
                return self._DEFAULTS[name]
        return getattr(importlib.import_module(self.__name__), name)

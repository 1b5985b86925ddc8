"""A stand-in for ``DTensor`` that avoids its import while operators are traced.

Torch tests every tensor subclass for ``DTensor``, and imports that class at the first test: a
quarter of a second and 120 modules, also for programs without any. So torch gets a stand-in, which
recognizes them once the class is imported.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from abele._torch import versions

_NAME = "torch.distributed.tensor"
_UNTYPED: Any = torch._C


class _KnowsThoseLoaded(type):
    """A metaclass whose ``isinstance`` tests for ``DTensor`` only once that is loaded."""

    def __instancecheck__(cls, instance: object) -> bool:
        real = _loaded()
        return real is not None and isinstance(instance, real)

    def __getattr__(cls, name: str) -> Any:
        real = _loaded()
        if real is None or name != "__torch_dispatch__":  # all that torch reads of the class
            raise AttributeError(name)
        return getattr(real, name)


class _DTensor(metaclass=_KnowsThoseLoaded):
    """A stand-in class that torch uses in place of ``DTensor``."""


def _loaded() -> type | None:
    real = getattr(sys.modules.get(_NAME), "DTensor", None)
    return None if real is _DTensor else real


def load_when_needed() -> None:
    """Keep torch from loading ``DTensor`` unless other code loads it.

    Torch caches the class that it first looks up, so one look-up is made with a stand-in.
    """
    if not versions.tried or _NAME in sys.modules:
        return
    stand_in: Any = types.ModuleType(_NAME)
    stand_in.DTensor = _DTensor
    sys.modules[_NAME] = stand_in
    try:
        torch.neg(torch.Tensor._make_subclass(_Asked, torch.empty(0)))
    finally:
        del sys.modules[_NAME]


class _Asked(torch.Tensor):
    """A tensor subclass with one operator, by which torch looks up ``DTensor``."""

    __torch_function__ = _UNTYPED._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0]


def is_sharded(module: torch.nn.Module) -> bool:
    """Return whether a parameter or buffer of a module itself is a ``DTensor``."""
    tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(isinstance(each, _DTensor) for each in tensors)

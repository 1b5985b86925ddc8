"""The engine: a model's whole step as one static program, compiled ahead of time.

Read ``abele/README.md`` for the tour of the files in the order data meets them.

What is named here is imported when it is first used: commands that only read programs, such as
``abele port --scan``, never wait for torch. ``abele.capture`` is the package, and its function is
``abele.capture.capture``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from abele.errors import AbeleError
from abele.version import __version__

if TYPE_CHECKING:
    from abele.capture import Captured
    from abele.compilation.build import BuildRecord, FallbackWarning, build
    from abele.compilation.cache import CacheWarning, ExecutableCache
    from abele.compilation.executable import Executable
    from abele.compilation.verdict import ComparisonWarning
    from abele.functions.decorator import EagerWarning, compile
    from abele.program import Program, Role, Slot
    from abele.runtime.session import Session
    from abele.step.config import OutputMode, Reduction, StepConfig
    from abele.step.update_rules import Group, UpdateRule
    from abele.targets import available, get_target

__all__ = [
    "AbeleError",
    "BuildRecord",
    "CacheWarning",
    "Captured",
    "ComparisonWarning",
    "EagerWarning",
    "Executable",
    "ExecutableCache",
    "FallbackWarning",
    "Group",
    "OutputMode",
    "Program",
    "Reduction",
    "Role",
    "Session",
    "Slot",
    "StepConfig",
    "UpdateRule",
    "__version__",
    "available",
    "build",
    "compile",
    "get_target",
]

_NAMES = {
    "abele.capture": ("Captured",),
    "abele.compilation.build": ("BuildRecord", "FallbackWarning", "build"),
    "abele.compilation.cache": ("CacheWarning", "ExecutableCache"),
    "abele.compilation.executable": ("Executable",),
    "abele.compilation.verdict": ("ComparisonWarning",),
    "abele.functions.decorator": ("EagerWarning", "compile"),
    "abele.program": ("Program", "Role", "Slot"),
    "abele.runtime.session": ("Session",),
    "abele.step.config": ("OutputMode", "Reduction", "StepConfig"),
    "abele.step.update_rules": ("Group", "UpdateRule"),
    "abele.targets": ("available", "get_target"),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name of the package at its first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names of the package, also those not imported yet."""
    return sorted({*globals(), *__all__})

"""Registry of the compilation targets (reference, null, cpu, cuda), one module or package each.

reference  interprets with torch's own kernels: the oracle, and the fallback
null       returns zeros of the right shapes, for testing everything around a program
cpu        compiled ahead of time for the host CPU, or run operator by operator
cuda       generated and torch's kernels on an NVIDIA GPU, one CUDA graph per call
"""

from __future__ import annotations

import importlib
import os

from abele.errors import TargetError
from abele.targets.base import Compiled, Lowering, Target

NAMES = ("reference", "null", "cpu", "cuda")
ENVIRONMENT = "ABELE_TARGET"

__all__ = [
    "ENVIRONMENT",
    "NAMES",
    "Compiled",
    "Lowering",
    "Target",
    "available",
    "get_target",
    "requested",
]


def get_target(name: str) -> Target:
    """Return the compilation target called ``name``.

    Raises:
        TargetError: no target has that name.
    """
    if name not in NAMES:
        raise TargetError(
            f"Target {name!r} does not exist. Known targets are {', '.join(NAMES)}. "
            f"Set {ENVIRONMENT} to one of them or leave it unset."
        )
    return importlib.import_module(f"abele.targets.{name}").TARGET


def available() -> dict[str, str | None]:
    """Return, by target name, why the target cannot run here, or ``None`` if it can."""
    return {name: get_target(name).unavailable() for name in NAMES}


def requested() -> str | None:
    """Return the target name set in the environment variable ``ABELE_TARGET``, if any."""
    return os.environ.get(ENVIRONMENT) or None

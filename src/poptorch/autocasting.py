"""Automatic casting of releases 2.1 to 3.0, and other names of earlier releases.

PopTorch 3.1 dropped automatic casting for explicit casts. A program that asks for it computes in
the types its tensors have, which is never less precise.
"""

import contextlib
import enum
from collections.abc import Sequence
from typing import Any

import torch

from poptorch.enums import OutputMode
from poptorch.options._container import say_once

__all__ = ["Policy", "autocast"]


class Policy:
    """Casts of operations by dtype; stored without effect.

    Args:
        fp16: names of operations that were to run in half.
        fp32: names of those that were to run in float.
        promote: names of those whose operands were to take the widest type.
        demote: names of those whose operands were to take the narrowest type.
    """

    def __init__(
        self,
        fp16: Sequence[str] = (),
        fp32: Sequence[str] = (),
        promote: Sequence[str] = (),
        demote: Sequence[str] = (),
    ):
        self.fp16, self.fp32 = list(fp16), list(fp32)
        self.promote, self.demote = list(promote), list(demote)


class autocast(contextlib.ContextDecorator):
    """Context manager and decorator in which nothing is cast.

    Args:
        enabled: a warning says once that there is no effect.
    """

    def __init__(self, enabled: bool = True):
        if enabled:
            say_once("autocast", "nothing is cast by itself, every operation keeps its type")

    def __enter__(self) -> "autocast":
        return self

    def __exit__(self, *exc: Any) -> None:
        return None


class MultiConvPartialsType(enum.Enum):
    """Types of partial sums in a ``MultiConv``, as release 2.0 named them."""

    Float = torch.float32
    Half = torch.float16


#: Names that are found on the package, and what stands behind them.
NAMES = {"AnchorMode": OutputMode, "MultiConvPartialsType": MultiConvPartialsType}
_EAGER = "it belonged to an experiment that never left releases 2.3 to 3.0. Wrap the model instead"
REMOVED = {
    "Compiler": _EAGER,
    "IPUScope": _EAGER,
    "eager": _EAGER,
    "experimental": _EAGER,
    "hasMLIRSupportOnPlatform": _EAGER,
}


def lookup(name: str) -> object:
    """Return the replacement of a name of an earlier release.

    Raises:
        AttributeError: it was removed (saying what to use), or there was never such a name.
    """
    if name in NAMES:
        say_once(f"poptorch.{name}", f"{getattr(NAMES[name], '__name__', name)} is used")
        return NAMES[name]
    if name in REMOVED:
        raise AttributeError(f"poptorch.{name} was removed by PopTorch 3.1: {REMOVED[name]}.")
    raise AttributeError(f"module 'poptorch' has no attribute {name!r}")

"""Automatic casting of PopTorch 2.1 to 3.0, without effect, and other outdated names.

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
    """A policy of automatic casts for operations; stored without effect.

    Args:
        fp16: names of operations that were to run in half.
        fp32: names of operations that were to run in float.
        promote: names of operations whose operands were to take the widest type.
        demote: names of operations whose operands were to take the narrowest type.
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
    """A context manager and decorator for automatic casting that has no effect here.

    Args:
        enabled: log once that nothing is cast.
    """

    def __init__(self, enabled: bool = True):
        if enabled:
            say_once("autocast", "nothing is cast by itself, every operation keeps its type")

    def __enter__(self) -> "autocast":
        return self

    def __exit__(self, *exc: Any) -> None:
        return None


class MultiConvPartialsType(enum.Enum):
    """Dtypes of partial sums in a ``MultiConv``, by their names in release 2.0."""

    Float = torch.float32
    Half = torch.float16


#: Outdated names that poptorch still provides, and their replacements.
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
    """Return the replacement of a name that earlier releases of poptorch had.

    Raises:
        AttributeError: it was removed (saying what to use), or there was never such a name.
    """
    if name in NAMES:
        say_once(f"poptorch.{name}", f"{getattr(NAMES[name], '__name__', name)} is used")
        return NAMES[name]
    if name in REMOVED:
        raise AttributeError(f"poptorch.{name} was removed by PopTorch 3.1: {REMOVED[name]}.")
    raise AttributeError(f"module 'poptorch' has no attribute {name!r}")

"""Names of earlier releases: those that still mean something, and a word on those that do not."""

import enum

import torch

from poptorch.autocasting import autocast
from poptorch.enums import OutputMode
from poptorch.options.earlier import say_once

__all__ = ["NAMES", "REMOVED", "MultiConvPartialsType", "autocast", "lookup"]


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

"""Automatic casting of releases 2.1 to 3.0: accepted, and nothing is cast.

PopTorch 3.1 dropped it for explicit casts. A program that asks for it computes in the types its
tensors have, which is never less precise.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

from poptorch.options.earlier import say_once

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

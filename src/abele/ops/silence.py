"""Suppression of a program's side effects: no printing and no host calls.

Programs run so where their results are only compared.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Sequence

import torch

from abele.contexts import held

# Compiled code calls back in its caller's thread.
_silent: contextvars.ContextVar[bool] = contextvars.ContextVar("silent", default=False)


def silenced() -> contextlib.AbstractContextManager[None]:
    """Suppress side effects of operators (printing, host calls), in a context."""
    return held(_silent, True)


def is_silenced() -> bool:
    """Return whether side effects of operators are suppressed."""
    return _silent.get()


def made_up(like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return placeholder results of a host function: distinct fractions, or zeros if not float.

    Args:
        like: tensors of the shapes and dtypes of the results.
    """
    return [_made_up(each) for each in like]


def _made_up(like: torch.Tensor) -> torch.Tensor:
    if not like.is_floating_point():
        return torch.zeros_like(like)
    numbers = torch.arange(math.prod(like.shape), device=like.device) % 7 + 1
    return (numbers / 8).reshape(like.shape).to(like.dtype)

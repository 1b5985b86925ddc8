"""The C++ compiler of this machine, and what its processor has."""

from __future__ import annotations

import functools

import torch

from abele import processor
from abele.kernels.sources import compiler

__all__ = ["compiler", "instruction_set"]


@functools.cache
def instruction_set() -> str:
    """What instructions this processor has: a hash of all, and those that torch names."""
    capabilities = torch.cpu.get_capabilities()
    named = sorted(name for name, value in capabilities.items() if value is True)
    return " ".join((processor.instructions(), *named))

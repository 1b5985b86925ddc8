"""Tolerances of compiled programs, relative to interpreted ones: the second rung of the ladder.

Interpreted programs give the bits of plain PyTorch. Compiled ones round in another order.
"""

from __future__ import annotations

import torch

#: Largest difference, relative to the norm of each tensor: float32 and wider types.
TOLERANCE = 1e-5
#: Likewise where a program computes in float16 or bfloat16.
HALF_TOLERANCE = 5e-3


def compiled(dtype: torch.dtype) -> float:
    """Return the tolerance for a tensor of this type, relative to its norm."""
    return HALF_TOLERANCE if dtype in (torch.float16, torch.bfloat16) else TOLERANCE

"""Operators that ahead-of-time autograd traces otherwise than plain PyTorch computes them.

Without these, results would differ from plain PyTorch's in the last bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from abele.trace.decompositions import PORTABLE_OPERATORS, bernoulli_in_memory_order

aten = torch.ops.aten


def _dropout(
    x: torch.Tensor, p: float, train: bool | None = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Trace dropout as plain PyTorch computes it on the host; save one byte per element."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return x.mul(torch.zeros_like(x)), torch.zeros_like(x, dtype=torch.bool)
    kept = bernoulli_in_memory_order(torch.empty_like(x), 1 - p)
    return x * kept.div(1 - p), kept.to(torch.bool)


def _dropout_backward(gradient: torch.Tensor, kept: torch.Tensor, scale: float) -> torch.Tensor:
    if scale == 0:
        return torch.zeros_like(gradient)
    p = float(f"{1 / scale:.15g}")  # forward divided by it
    return gradient * kept.to(gradient.dtype).div(p if 1 / p == scale else 1 / scale)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _dropout,
    aten.native_dropout_backward.default: _dropout_backward,
    **{
        each: PORTABLE_OPERATORS[each]
        for each in (
            aten.binary_cross_entropy_with_logits.default,
            getattr(aten.random_, "from"),
        )
    },
}

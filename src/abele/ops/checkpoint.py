"""Checkpoint operator: marks activations to save; others may be rematerialized in backward.

It occurs in captured programs only: ``passes/recomputation.py`` reads and removes it.
Importing this module registers it.
"""

from __future__ import annotations

from typing import Any

import torch

from abele.ops._register import register_gradient, results_like


@torch.library.custom_op("abele::checkpoint", mutates_args=(), schema="(Tensor x) -> Tensor")
def _checkpoint(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


results_like("abele::checkpoint", 0)


def _gradient(context: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad


register_gradient("abele::checkpoint", _gradient)

operator = torch.ops.abele.checkpoint.default


def checkpoint(x: torch.Tensor) -> torch.Tensor:
    """Return ``x``, marked as a checkpoint in the program under capture."""
    return operator(x)


@torch.library.custom_op(
    "abele::not_before", mutates_args=(), schema="(Tensor x, Tensor after) -> Tensor"
)
def _not_before(x: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    del after
    return x.clone()


results_like("abele::not_before", 0)


not_before = torch.ops.abele.not_before.default

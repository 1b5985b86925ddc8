"""A mark on activations that are kept; those between marks may be recomputed in backward.

It occurs in captured programs only: ``passes/recomputation.py`` reads and removes it.
Importing this module registers it.
"""

from __future__ import annotations

import torch


@torch.library.custom_op("abele::checkpoint", mutates_args=(), schema="(Tensor x) -> Tensor")
def _checkpoint(x):
    return x.clone()


@_checkpoint.register_fake
def _shape(x):
    return torch.empty_like(x)


_checkpoint.register_autograd(lambda ctx, grad: grad)

operator = torch.ops.abele.checkpoint.default


def checkpoint(x: torch.Tensor) -> torch.Tensor:
    """Return ``x``, marked in the program under capture."""
    return operator(x)


@torch.library.custom_op(
    "abele::not_before", mutates_args=(), schema="(Tensor x, Tensor after) -> Tensor"
)
def _not_before(x, after):
    del after
    return x.clone()


@_not_before.register_fake
def _not_before_shape(x, after):
    return torch.empty_like(x)


not_before = torch.ops.abele.not_before.default

"""Fused SGD update with momentum of many parameters, equal to ``update_rules`` for one.

Hyper-parameters are 0-d float64 tensors: ``rest`` is what dampening leaves of a gradient, ``decay``
that of weight decay, and ``nesterov`` one or zero. Importing this module registers the operator.
"""

from __future__ import annotations

import torch

from abele.ops._register import implements, shapes_of

_NAME = "abele::sgd"


@implements(
    _NAME,
    "(Tensor[] params, Tensor[] grads, Tensor[] velocities,"
    " Tensor rate, Tensor momentum, Tensor rest, Tensor decay, Tensor nesterov) -> Tensor[]",
)
def _sgd(
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    velocities: list[torch.Tensor],
    rate: torch.Tensor,
    momentum: torch.Tensor,
    rest: torch.Tensor,
    decay: torch.Tensor,
    nesterov: torch.Tensor,
) -> list[torch.Tensor]:
    """Return the new parameters and velocities, concatenated."""
    if decay != 0:
        grads = [grad + decay * param for grad, param in zip(grads, params, strict=True)]
    velocities = [old * momentum + rest * grad for old, grad in zip(velocities, grads, strict=True)]
    moves = velocities
    if nesterov != 0:
        moves = [grad + momentum * new for grad, new in zip(grads, velocities, strict=True)]
    updated = [param - rate * move for param, move in zip(params, moves, strict=True)]
    return [*updated, *velocities]


@shapes_of(_NAME)
def _shapes(
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    velocities: list[torch.Tensor],
    *numbers: torch.Tensor,
) -> list[torch.Tensor]:
    return [torch.empty_like(each) for each in (*params, *velocities)]


update = torch.ops.abele.sgd.default

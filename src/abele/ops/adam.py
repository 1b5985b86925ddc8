"""Fused Adam update of many parameters, equal to that of ``update_rules`` for one parameter.

Hyper-parameters are 0-d float64 tensors; ``decay`` is that of decoupled weight decay, or zero, and
gradients are divided by ``scale``. Parameters and gradients may have 16 bits.
Importing this module registers the operator.
"""

from __future__ import annotations

import torch

from abele.ops._register import implements, shapes_of

_NAME = "abele::adam"


@implements(
    _NAME,
    "(Tensor[] params, Tensor[] grads, Tensor[] first, Tensor[] second, Tensor[] steps,"
    " Tensor rate, Tensor beta1, Tensor beta2, Tensor eps, Tensor decay, Tensor scale) -> Tensor[]",
)
def _adam(
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    first: list[torch.Tensor],
    second: list[torch.Tensor],
    steps: list[torch.Tensor],
    rate: torch.Tensor,
    beta1: torch.Tensor,
    beta2: torch.Tensor,
    eps: torch.Tensor,
    decay: torch.Tensor,
    scale: torch.Tensor,
) -> list[torch.Tensor]:
    """Return the new parameters, first moments, second moments and steps, concatenated."""
    weight, grads = (1 - beta1).float(), [grad.float() / scale for grad in grads]
    first = [torch.lerp(old, grad, weight) for old, grad in zip(first, grads, strict=True)]
    second = [
        (old * beta2).addcmul(grad * (1 - beta2), grad)
        for old, grad in zip(second, grads, strict=True)
    ]
    steps = [step + 1 for step in steps]
    updated: list[torch.Tensor] = []
    for param, m, v, step in zip(params, first, second, steps, strict=True):
        denominator = v.sqrt() / (1 - beta2**step).sqrt() + eps
        left = param.float() * (1 - rate * decay)
        new = left - (m * (rate / (1 - beta1**step))) / denominator
        updated.append(new.to(param.dtype))
    return [*updated, *first, *second, *steps]


@shapes_of(_NAME)
def _shapes(
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    first: list[torch.Tensor],
    second: list[torch.Tensor],
    steps: list[torch.Tensor],
    *numbers: torch.Tensor,
) -> list[torch.Tensor]:
    return [torch.empty_like(each) for each in (*params, *first, *second, *steps)]


update = torch.ops.abele.adam.default

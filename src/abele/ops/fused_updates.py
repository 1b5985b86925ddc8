"""Fused updates of many parameters, equal to those of ``update_rules`` for one parameter.

Hyper-parameters are 0-d float64 tensors. Importing this module registers the operators.
"""

from __future__ import annotations

import torch

from abele.ops._register import implements, shapes_of

_ADAM, _SGD = "abele::adam", "abele::sgd"
_Tensors = list[torch.Tensor]


@implements(
    _ADAM,
    "(Tensor[] params, Tensor[] grads, Tensor[] first, Tensor[] second, Tensor[] steps,"
    " Tensor rate, Tensor beta1, Tensor beta2, Tensor eps, Tensor decay, Tensor scale) -> Tensor[]",
)
def _adam(
    params: _Tensors,
    grads: _Tensors,
    first: _Tensors,
    second: _Tensors,
    steps: _Tensors,
    *numbers: torch.Tensor,
) -> _Tensors:
    """Return the new parameters, first moments, second moments and steps, concatenated.

    ``decay`` is that of decoupled weight decay, or zero, and gradients are divided by ``scale``.
    Parameters and gradients may have 16 bits.
    """
    rate, beta1, beta2, eps, decay, scale = numbers
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


@implements(
    _SGD,
    "(Tensor[] params, Tensor[] grads, Tensor[] velocities,"
    " Tensor rate, Tensor momentum, Tensor rest, Tensor decay, Tensor nesterov) -> Tensor[]",
)
def _sgd(
    params: _Tensors, grads: _Tensors, velocities: _Tensors, *numbers: torch.Tensor
) -> _Tensors:
    """Return the new parameters and velocities, concatenated.

    ``rest`` is what dampening leaves of a gradient, ``decay`` that of weight decay, and
    ``nesterov`` one or zero.
    """
    rate, momentum, rest, decay, nesterov = numbers
    if decay != 0:
        grads = [grad + decay * param for grad, param in zip(grads, params, strict=True)]
    velocities = [old * momentum + rest * grad for old, grad in zip(velocities, grads, strict=True)]
    moves = velocities
    if nesterov != 0:
        moves = [grad + momentum * new for grad, new in zip(grads, velocities, strict=True)]
    updated = [param - rate * move for param, move in zip(params, moves, strict=True)]
    return [*updated, *velocities]


@shapes_of(_ADAM)
@shapes_of(_SGD)
def _shapes(params: _Tensors, grads: _Tensors, *others: _Tensors | torch.Tensor) -> _Tensors:
    state = (each for group in others if isinstance(group, list) for each in group)
    return [torch.empty_like(each) for each in (*params, *state)]


adam, sgd = torch.ops.abele.adam.default, torch.ops.abele.sgd.default

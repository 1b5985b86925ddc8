"""Fusion of the Adam updates of all parameters into one operation.

    m1 = lerp(m, g, ...); v1 = addcmul(v * b2, g * ..., g); s1 = s + 1; ...; p1 = p - ...
->  [p1, ..., m1, ..., v1, ..., s1, ...] = adam([p, ...], [g, ...], [m, ...], [v, ...], [s, ...])

Seventeen small operations per parameter read and write its memory a dozen times; the joined one
once. ``update_rules.py`` defines the computation. Each hyper-parameter is a constant or, where it
may change between calls, a slot.
"""

from __future__ import annotations

from typing import Any

import torch

from abele.ops import adam
from abele.passes.of_lowerings._updates import (
    Mismatch,
    Number,
    Update,
    check_numbers,
    check_tensors,
    converted,
    joined,
    take,
)
from abele.program import Program

aten = torch.ops.aten

_Node = torch.fx.Node


def fused_adam(program: Program) -> Program:
    """Replace the updates by Adam of float32 parameters that share their hyper-parameters."""
    return joined(program, adam.update, _match)


def _match(param: _Node, new: _Node) -> Update:
    left, change = take(new, aten.sub.Tensor)
    moved, denominator = take(change, aten.div.Tensor)
    first, rate = take(moved, aten.mul.Tensor)
    rate, rise = take(rate, aten.div.Tensor)
    root, eps = take(denominator, aten.add.Tensor)
    root, correction = take(root, aten.div.Tensor)
    (second,), (correction,) = take(root, aten.sqrt.default), take(correction, aten.sqrt.default)
    beta1, step = _correction(rise)
    beta2, same_step = _correction(correction)
    if step is not same_step:
        raise Mismatch
    lerp = aten.lerp.Tensor if isinstance(beta1, _Node) else aten.lerp.Scalar
    old_first, grad, weight = take(first, lerp)
    scaled, part, _ = take(second, aten.addcmul.default, ..., ..., grad)
    old_second, _ = take(scaled, aten.mul.Tensor, ..., beta2)
    _, rest = take(part, aten.mul.Tensor, grad, ...)
    _check_rest(weight, beta1)
    _check_rest(rest, beta2)
    old_step, _ = take(step, aten.add.Tensor, ..., 1)
    numbers = (rate, beta1, beta2, eps, _decay(left, param, rate))
    inputs = (param, grad, old_first, old_second, old_step)
    check_tensors(inputs[:-1])
    check_numbers((old_step, *numbers))
    return Update(numbers, inputs, (new, first, second, step))


def _correction(node: Any) -> tuple[Number, _Node]:
    """``1 - beta ** step`` -> beta and step."""
    power, _ = take(node, aten.rsub.Scalar, ..., 1)
    varies = isinstance(power, _Node) and power.target is aten.pow.Tensor_Tensor
    beta, step = take(power, aten.pow.Tensor_Tensor if varies else aten.pow.Scalar)
    return beta, step


def _check_rest(value: Any, beta: Number) -> None:
    """``value`` must be ``1 - beta``, perhaps in the type of the tensors."""
    if not isinstance(beta, _Node):
        if value != 1 - beta:
            raise Mismatch
        return
    take(converted(value), aten.rsub.Scalar, beta, 1)


def _decay(left: Any, param: _Node, rate: _Node) -> Number:
    """Decoupled weight decay: ``param * (1 - rate * decay)``."""
    if left is param:
        return 0.0
    _, factor = take(left, aten.mul.Tensor, param, ...)
    product, _ = take(factor, aten.rsub.Scalar, ..., 1)
    _, decay = take(product, aten.mul.Tensor, rate, ...)
    return decay

"""Fusion of the updates of all parameters by SGD with momentum into one operation.

    g1 = g + decay * p; v1 = v * momentum + rest * g1; p1 = p - rate * v1; ...
->  [p1, ..., v1, ...] = sgd([p, ...], [g, ...], [v, ...])

Three to four operations per parameter and two copies read and write its memory a dozen times; the
joined one once. ``update_rules.py`` defines the computation. Each hyper-parameter is a constant or,
where it may change between calls, a slot.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from abele.ops import sgd
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


def fused_sgd(program: Program) -> Program:
    """Replace the updates by SGD with momentum of float32 parameters that share their numbers."""
    return joined(program, sgd.update, _match)


def _match(param: _Node, new: _Node) -> Update:
    old_param, moved, rate = _scaled_sum(new, sign=-1)
    if old_param is not param:
        raise Mismatch
    try:
        grad, velocity, ahead = _scaled_sum(moved)  # Nesterov's
        old, momentum, same_grad, rest = _velocity(velocity)
        nesterov = 1.0
        if grad is not same_grad or not _same(ahead, momentum):
            raise Mismatch
    except Mismatch:
        velocity, nesterov = moved, 0.0
        old, momentum, grad, rest = _velocity(velocity)
    grad, decay = _without_decay(grad, param)
    check_tensors((param, grad, old))
    numbers = (rate, momentum, rest, decay, nesterov)
    check_numbers(numbers)
    return Update(numbers, (param, grad, old), (new, velocity))


def _velocity(node: Any) -> tuple[_Node, Number, _Node, Number]:
    """``old * momentum + rest * grad`` -> these four, where it is written over the old one."""
    kept, grad, rest = _scaled_sum(node)
    old, momentum = take(kept, aten.mul.Tensor)
    written = [user.args[0] for user in node.users if user.target is aten.copy_.default]
    if old not in written:
        raise Mismatch
    return old, momentum, grad, rest


def _without_decay(grad: _Node, param: _Node) -> tuple[_Node, Number]:
    """``grad + decay * param`` -> gradient and decay."""
    try:
        plain, decayed, decay = _scaled_sum(grad)
        check_numbers((decay,))
    except Mismatch:
        return grad, 0.0
    return (plain, decay) if decayed is param else (grad, 0.0)


def _scaled_sum(node: Any, sign: int = 1) -> tuple[_Node, _Node, Number]:
    """``y + sign * number * x`` -> y, x and the number, as ``arithmetic.axpy`` writes it."""
    if not isinstance(node, _Node):
        raise Mismatch
    arguments, settings = cast("Any", node.args), cast("Any", node.kwargs)
    if node.target is aten.add.Tensor:  # of a constant
        y, x = arguments
        number = sign * settings.get("alpha", 1)
    elif node.target is aten.addcmul.default and settings.get("value", 1) == sign:  # of a slot
        y, x, number = arguments
        number = converted(number)
    else:
        raise Mismatch
    check_tensors((y, x))
    return y, x, number


def _same(one: Number, other: Number) -> bool:
    return one is other or (not isinstance(one, _Node) and one == other)

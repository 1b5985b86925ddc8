"""Fused optimizer updates: one operator for many parameters."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Callable
from typing import Any, cast

import torch

from abele.ops.fused_updates import adam, sgd
from abele.passes._edit import editable, finished
from abele.program import Program
from abele.program.aliasing import erase_dead_nodes, stays_in_program

aten = torch.ops.aten

_Node = torch.fx.Node
_FLOAT = torch.float32

# A hyper-parameter: a constant, or the node of one that may change.
Number = float | torch.fx.Node


class Mismatch(Exception):
    """Raised if a node does not match the pattern of an optimizer update."""


@dataclasses.dataclass(frozen=True)
class Update:
    """A matched optimizer update of one parameter.

    Attributes:
        numbers: hyper-parameters, in the order of the fused operator's arguments.
        inputs: this parameter's item of each list of input tensors, the parameter first.
        results: nodes of this parameter's item of each list of results, the parameter first.
    """

    numbers: tuple[Number, ...]
    inputs: tuple[_Node, ...]
    results: tuple[_Node, ...]


def joined(program: Program, target: Any, match: Callable[[_Node, _Node], Update]) -> Program:
    """Fuse the updates of parameters with equal hyper-parameters into one operator call.

    Args:
        program: with a separate update of each parameter.
        target: the fused operator.
        match: takes a parameter and its new value; raises ``Mismatch`` for another computation.
    """
    graph = editable(program)
    writes = [node for node in graph.graph.nodes if node.target is aten.copy_.default]
    by_numbers: dict[tuple[Any, ...], list[Update]] = {}
    for write in writes:
        try:
            update = match(*write.args)
        except Mismatch:
            continue
        types = [each.meta["val"].dtype for each in update.inputs]
        by_numbers.setdefault((*update.numbers, *types), []).append(update)
    for updates in by_numbers.values():
        _join(target, updates, writes[0])
    erase_dead_nodes(graph, stays_in_program)
    return finished(program, graph)


def take(node: Any, target: Any, *constants: Any) -> tuple[Any, ...]:
    """Return the arguments of a call of ``target``, or raise; ``...`` matches any argument."""
    if not isinstance(node, _Node) or node.target is not target or node.kwargs:
        raise Mismatch
    arguments = node.args
    if constants:
        expected = zip(arguments, constants, strict=False)
        same = all(
            pattern is ... or value is pattern or value == pattern for value, pattern in expected
        )
        if len(arguments) != len(constants) or not same:
            raise Mismatch
    return arguments


def converted(value: Any) -> Any:
    """Return a scalar before its cast to the tensors' dtype, if it was cast."""
    if not isinstance(value, _Node) or value.target is not aten._to_copy.default:
        return value
    if dict(value.kwargs) != {"dtype": _FLOAT}:
        raise Mismatch
    return value.args[0]


def check_tensors(tensors: tuple[Any, ...]) -> None:
    """Raise unless all nodes are float32 tensors of one shape."""
    if not all(isinstance(node, _Node) for node in tensors):
        raise Mismatch
    values = [node.meta["val"] for node in tensors]
    shapes = {tuple(value.shape) for value in values}
    if len(shapes) > 1 or any(value.dtype is not _FLOAT for value in values):
        raise Mismatch


def check_numbers(numbers: tuple[Any, ...]) -> None:
    """Raise unless all numbers are constants or 0-d float64 nodes."""
    values = [number.meta["val"] for number in numbers if isinstance(number, _Node)]
    if any(value.dtype is not torch.float64 or value.dim() for value in values):
        raise Mismatch


def _join(target: Any, updates: list[Update], before: _Node) -> None:
    graph, count = before.graph, len(updates)
    columns = [list(column) for column in zip(*(each.inputs for each in updates), strict=True)]
    kinds = range(len(updates[0].results))
    with graph.inserting_before(before):
        numbers = [_slot(each, updates[0].results[0]) for each in updates[0].numbers]
        call = graph.call_function(target, (*columns, *numbers))
        values = [each.results[kind].meta["val"] for kind in kinds for each in updates]
        call.meta = {**updates[0].results[0].meta, "val": values}
        for kind in kinds:
            for index, each in enumerate(updates):
                new = graph.call_function(operator.getitem, (call, kind * count + index))
                new.meta = dict(each.results[kind].meta)
                # Others that read it keep the old computation.
                each.results[kind].replace_all_uses_with(
                    new, lambda user: user.target is aten.copy_.default
                )


def _slot(number: Number, origin: _Node) -> _Node:
    """Return a number as a node; a constant is inserted before ``origin``."""
    if isinstance(number, _Node):
        return number
    kwargs: Any = {"dtype": torch.float64}
    constant = origin.graph.call_function(aten.full.default, ([], number), kwargs)
    value = origin.meta["val"].new_empty((), dtype=torch.float64)
    constant.meta = {**origin.meta, "val": value}
    return constant


def fused_adam(program: Program) -> Program:
    """Fuse Adam updates of parameters with one type and the same hyper-parameters."""
    return joined(program, adam, _match_adam)


def _match_adam(param: _Node, new: _Node) -> Update:
    computed = _before_rounding(param, new)
    left, change = take(computed, aten.sub.Tensor)
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
    check_tensors((computed, grad, old_first, old_second))
    given, scale = _before_division(grad, param)
    numbers = (rate, beta1, beta2, eps, _decay(left, param, rate), scale)
    inputs = (param, given, old_first, old_second, old_step)
    check_numbers((old_step, *numbers))
    return Update(numbers, inputs, (new, first, second, step))


def _before_rounding(param: _Node, new: _Node) -> _Node:
    """Return the float32 value of which a parameter of 16 bits becomes the nearest."""
    if param.meta["val"].dtype not in (torch.float16, torch.bfloat16):
        return new
    _, value = take(new, aten.copy.default, param, ...)
    if isinstance(value, _Node) and value.target is aten.view.default:
        value, _ = take(value, aten.view.default, ..., list(new.meta["val"].shape))
    return value


def _before_division(grad: _Node, param: _Node) -> tuple[_Node, Number]:
    """Match the division of a gradient by the loss scale; return the gradient and the scale."""
    given, scale = grad, 1.0
    with contextlib.suppress(Mismatch):
        divided, divisor = take(grad, aten.div.Tensor)
        check_numbers((divisor,))
        given, scale = divided, divisor
    with contextlib.suppress(Mismatch):
        given = converted(given)
    value, own = given.meta["val"], param.meta["val"]
    known = value.shape == own.shape and value.dtype in (_FLOAT, own.dtype)
    return (given, scale) if known else (grad, 1.0)


def _correction(node: Any) -> tuple[Number, _Node]:
    """Match ``1 - beta ** step``; return beta and step."""
    power, _ = take(node, aten.rsub.Scalar, ..., 1)
    varies = isinstance(power, _Node) and power.target is aten.pow.Tensor_Tensor
    beta, step = take(power, aten.pow.Tensor_Tensor if varies else aten.pow.Scalar)
    return beta, step


def _check_rest(value: Any, beta: Number) -> None:
    """Raise unless ``value`` is ``1 - beta``, perhaps cast to the tensors' dtype."""
    if not isinstance(beta, _Node):
        if value != 1 - beta:
            raise Mismatch
        return
    take(converted(value), aten.rsub.Scalar, beta, 1)


def _decay(left: Any, param: _Node, rate: _Node) -> Number:
    """Match decoupled weight decay ``param * (1 - rate * decay)``; return the decay."""
    if converted(left) is param:
        return 0.0
    kept, factor = take(left, aten.mul.Tensor)
    if converted(kept) is not param:
        raise Mismatch
    product, _ = take(factor, aten.rsub.Scalar, ..., 1)
    _, decay = take(product, aten.mul.Tensor, rate, ...)
    return decay


def fused_sgd(program: Program) -> Program:
    """Fuse momentum SGD updates of float32 parameters with the same hyper-parameters."""
    return joined(program, sgd, _match_sgd)


def _match_sgd(param: _Node, new: _Node) -> Update:
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
    """Match an in-place ``old * momentum + rest * grad``; return old, momentum, grad, rest."""
    kept, grad, rest = _scaled_sum(node)
    old, momentum = take(kept, aten.mul.Tensor)
    written = [user.args[0] for user in node.users if user.target is aten.copy_.default]
    if old not in written:
        raise Mismatch
    return old, momentum, grad, rest


def _without_decay(grad: _Node, param: _Node) -> tuple[_Node, Number]:
    """Match ``grad + decay * param``; return gradient and decay."""
    try:
        plain, decayed, decay = _scaled_sum(grad)
        check_numbers((decay,))
    except Mismatch:
        return grad, 0.0
    return (plain, decay) if decayed is param else (grad, 0.0)


def _scaled_sum(node: Any, sign: int = 1) -> tuple[_Node, _Node, Number]:
    """Match ``y + sign * number * x`` as ``arithmetic.axpy`` writes it; return y, x, number."""
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

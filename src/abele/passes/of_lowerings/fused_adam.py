"""Fusion of the Adam updates of all parameters into one operation.

    m1 = lerp(m, g, ...); v1 = addcmul(v * b2, g * ..., g); s1 = s + 1; ...; p1 = p - ...
->  [p1, ..., m1, ..., v1, ..., s1, ...] = adam([p, ...], [g, ...], [m, ...], [v, ...], [s, ...])

Seventeen small operations per parameter read and write its memory a dozen times; the joined one
once. ``update_rules.py`` defines the computation. Each hyper-parameter is a constant or, where it
may change between calls, a slot.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch

from abele.ops import adam
from abele.passes._edit import editable, finished
from abele.program import Program
from abele.program.dead_nodes import erase_dead_nodes, stays_in_program

aten = torch.ops.aten

_Node = torch.fx.Node
_FLOAT = torch.float32

# A hyper-parameter: a constant, or the node of one that may change.
_Number = float | torch.fx.Node


class _Mismatch(Exception):
    """A node does not match Adam's update at this place."""


@dataclasses.dataclass(frozen=True)
class _Rule:
    rate: _Node
    beta1: _Number
    beta2: _Number
    eps: _Number
    decay: _Number

    def numbers(self) -> tuple[_Number, ...]:
        return self.rate, self.beta1, self.beta2, self.eps, self.decay


@dataclasses.dataclass(frozen=True)
class _Update:
    """One parameter's update: what goes in, and the nodes whose values come out."""

    rule: _Rule
    inputs: tuple[_Node, ...]  # param, grad, first, second, step
    results: tuple[_Node, ...]  # the new param, first, second, step


def fused_adam(program: Program) -> Program:
    """Replace the updates by Adam of float32 parameters that share their hyper-parameters."""
    graph = editable(program)
    writes = [node for node in graph.graph.nodes if node.target is aten.copy_.default]
    by_rule: dict[_Rule, list[_Update]] = {}
    for write in writes:
        try:
            update = _match(*write.args)
        except _Mismatch:
            continue
        by_rule.setdefault(update.rule, []).append(update)
    for rule, updates in by_rule.items():
        _join(rule, updates, writes[0])
    erase_dead_nodes(graph, stays_in_program)
    return finished(program, graph)


def _take(node: Any, target: Any, *constants: Any) -> tuple[Any, ...]:
    """Return the arguments of a node that must call ``target``; ``...`` matches any argument."""
    if not isinstance(node, _Node) or node.target is not target or node.kwargs:
        raise _Mismatch
    arguments = node.args
    if constants:
        expected = zip(arguments, constants, strict=False)
        same = all(
            pattern is ... or value is pattern or value == pattern for value, pattern in expected
        )
        if len(arguments) != len(constants) or not same:
            raise _Mismatch
    return arguments


def _match(param: _Node, new: _Node) -> _Update:
    left, change = _take(new, aten.sub.Tensor)
    moved, denominator = _take(change, aten.div.Tensor)
    first, rate = _take(moved, aten.mul.Tensor)
    rate, rise = _take(rate, aten.div.Tensor)
    root, eps = _take(denominator, aten.add.Tensor)
    root, correction = _take(root, aten.div.Tensor)
    (second,), (correction,) = _take(root, aten.sqrt.default), _take(correction, aten.sqrt.default)
    beta1, step = _correction(rise)
    beta2, same_step = _correction(correction)
    if step is not same_step:
        raise _Mismatch
    lerp = aten.lerp.Tensor if isinstance(beta1, _Node) else aten.lerp.Scalar
    old_first, grad, weight = _take(first, lerp)
    scaled, part, _ = _take(second, aten.addcmul.default, ..., ..., grad)
    old_second, _ = _take(scaled, aten.mul.Tensor, ..., beta2)
    _, rest = _take(part, aten.mul.Tensor, grad, ...)
    _check_rest(weight, beta1)
    _check_rest(rest, beta2)
    old_step, _ = _take(step, aten.add.Tensor, ..., 1)
    rule = _Rule(rate, beta1, beta2, eps, _decay(left, param, rate))
    inputs = (param, grad, old_first, old_second, old_step)
    _check_types(inputs, *(each for each in rule.numbers() if isinstance(each, _Node)))
    return _Update(rule, inputs, (new, first, second, step))


def _correction(node: Any) -> tuple[_Number, _Node]:
    """``1 - beta ** step`` -> beta and step."""
    power, _ = _take(node, aten.rsub.Scalar, ..., 1)
    varies = isinstance(power, _Node) and power.target is aten.pow.Tensor_Tensor
    beta, step = _take(power, aten.pow.Tensor_Tensor if varies else aten.pow.Scalar)
    return beta, step


def _check_rest(value: Any, beta: _Number) -> None:
    """``value`` must be ``1 - beta``, perhaps in the type of the tensors."""
    if not isinstance(beta, _Node):
        if value != 1 - beta:
            raise _Mismatch
        return
    if isinstance(value, _Node) and value.target is aten._to_copy.default:
        if dict(value.kwargs) != {"dtype": _FLOAT}:
            raise _Mismatch
        (value,) = value.args
    _take(value, aten.rsub.Scalar, beta, 1)


def _decay(left: Any, param: _Node, rate: _Node) -> _Number:
    """Decoupled weight decay: ``param * (1 - rate * decay)``."""
    if left is param:
        return 0.0
    _, factor = _take(left, aten.mul.Tensor, param, ...)
    product, _ = _take(factor, aten.rsub.Scalar, ..., 1)
    _, decay = _take(product, aten.mul.Tensor, rate, ...)
    return decay


def _check_types(inputs: tuple[Any, ...], *slots: _Node) -> None:
    if not all(isinstance(node, _Node) for node in inputs):
        raise _Mismatch
    *tensors, step = (node.meta["val"] for node in inputs)
    shapes = {tuple(value.shape) for value in tensors}
    numbers = (step, *(slot.meta["val"] for slot in slots))
    if len(shapes) > 1 or any(value.dtype is not _FLOAT for value in tensors):
        raise _Mismatch
    if any(value.dtype is not torch.float64 or value.dim() for value in numbers):
        raise _Mismatch


def _join(rule: _Rule, updates: list[_Update], before: _Node) -> None:
    graph, count = before.graph, len(updates)
    columns = [list(column) for column in zip(*(each.inputs for each in updates), strict=True)]
    with graph.inserting_before(before):
        numbers = [_slot(each, rule.rate, updates[0].results[0]) for each in rule.numbers()]
        joined = graph.call_function(adam.update, (*columns, *numbers))
        values = [each.results[kind].meta["val"] for kind in range(4) for each in updates]
        joined.meta = {**updates[0].results[0].meta, "val": values}
        for kind in range(4):
            for index, each in enumerate(updates):
                new = graph.call_function(operator.getitem, (joined, kind * count + index))
                new.meta = dict(each.results[kind].meta)
                # Others that read it keep the old computation.
                each.results[kind].replace_all_uses_with(
                    new, lambda user: user.target is aten.copy_.default
                )


def _slot(number: _Number, like: _Node, origin: _Node) -> _Node:
    """A number as a node of the shape and type of ``like``, made where ``origin`` was."""
    if isinstance(number, _Node):
        return number
    kwargs: Any = {"dtype": torch.float64}
    constant = like.graph.call_function(aten.full.default, ([], number), kwargs)
    constant.meta = {**origin.meta, "val": like.meta["val"]}
    return constant

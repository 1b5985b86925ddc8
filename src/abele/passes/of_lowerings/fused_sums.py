"""Fusion of a training batch norm with the residual sum and the activation after it.

    n, kept, s, ... = norm_activation(x, w, b, ..., slope=1)
    t = n + added; y = leaky_relu(t)
    g = leaky_relu_backward(grad + more, t); d = norm_activation_backward(g, kept, w, b, s)
->  y, s, ... = norm_sum_activation(x, w, b, ..., added)
    g, d = norm_sum_activation_backward(grad, more, y, x, w, s)

The sum and the activation are part of the norm's second pass over memory, their backward of its
backward's first; the sum itself is not kept.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from abele.ops import norm_activation
from abele.passes._edit import editable, finished
from abele.passes.of_lowerings.normalisation import (
    ACTIVATIONS,
    called,
    result_of,
    results_of,
    undoes,
)
from abele.program import Program, node_argument
from abele.program.aliasing import erase_dead_nodes, stays_in_program
from abele.trace.fake_results import Results

aten = torch.ops.aten

_Node = torch.fx.Node


@dataclasses.dataclass(frozen=True)
class _Sum:
    """A match of batch norm, sum and activation; ``undone`` and ``backward`` may be missing."""

    norm: _Node
    added: _Node
    activation: _Node
    slope: float
    undone: _Node | None  # the activation's backward
    backward: _Node | None


def fused_sums(program: Program) -> Program:
    """Fuse batch norms of float32 images with their residual sums and activations."""
    graph, results = editable(program), Results()
    order = {node: index for index, node in enumerate(graph.graph.nodes)}
    for node in order:
        if node.target is norm_activation.forward and node.args[7] == 1.0:
            match = _match(node)
            if match is not None and not _is_read_before(match, order):
                _replace(match, results)
    erase_dead_nodes(graph, stays_in_program)
    return finished(program, graph)


def _match(norm: _Node) -> _Sum | None:
    parts = results_of(norm)
    total = _only_user(parts.get(0))
    added = None if total is None else _other_summand(total, parts[0])
    if total is None or added is None:
        return None
    activations = [user for user in total.users if user.target in ACTIVATIONS]
    if len(activations) != 1:
        return None
    activation = activations[0]
    slope = ACTIVATIONS[activation.target](activation)
    if slope < 0:  # y would not say on which side of zero the sum was
        return None
    kept = parts.get(1)
    if kept is None or not kept.users:
        alone = len(total.users) == 1
        return _Sum(norm, added, activation, slope, None, None) if alone else None
    backward = _only_user(kept)
    if backward is None or backward.target is not norm_activation.backward:
        return None
    undone = node_argument(backward, 0)
    if not undoes(undone, activation, total, slope):
        return None
    if any(user not in (activation, undone) for user in total.users):
        return None
    return _Sum(norm, added, activation, slope, undone, backward)


def _is_read_before(match: _Sum, order: dict[_Node, int]) -> bool:
    """Return whether a norm's statistics are read before the sum can be computed."""
    others = (part for index, part in results_of(match.norm).items() if index > 1)
    at = order[match.activation]
    return any(order.get(user, at) < at for part in others for user in part.users)


def _only_user(node: _Node | None) -> _Node | None:
    return next(iter(node.users)) if node is not None and len(node.users) == 1 else None


def _other_summand(total: _Node, one: _Node) -> _Node | None:
    """Return the other operand if ``total`` adds ``one`` and an image of the same shape."""
    if total.target is not aten.add.Tensor or total.kwargs or len(total.args) != 2:
        return None
    a, b = total.args
    other = b if a is one else a
    if not isinstance(other, _Node) or other is one or not _alike(other, one):
        return None
    return other


def _alike(one: _Node, other: _Node) -> bool:
    a, b = one.meta["val"], other.meta["val"]
    return a.shape == b.shape and a.dtype == b.dtype


def _replace(match: _Sum, results: Results) -> None:
    norm = match.norm
    *inputs, momentum, eps, _ = norm.args
    arguments = (*inputs, match.added, momentum, eps, match.slope)
    with norm.graph.inserting_before(match.activation):
        joined = called(norm_activation.of_sum, arguments, norm, results)
        y, statistics, new_mean, new_var = (result_of(joined, index) for index in range(4))
    match.activation.replace_all_uses_with(y)
    if match.undone is not None and match.backward is not None:
        _replace_backward(match, match.undone, match.backward, (y, statistics), results)
    for index, new in ((2, statistics), (3, new_mean), (4, new_var)):
        old = results_of(norm).get(index)
        if old is not None:
            old.replace_all_uses_with(new)


def _replace_backward(
    match: _Sum, undone: _Node, backward: _Node, saved: tuple[_Node, _Node], results: Results
) -> None:
    y, statistics = saved
    x, weight = match.norm.args[:2]
    arguments = (*_gradients(undone), y, x, weight, statistics, match.slope)
    with undone.graph.inserting_before(undone):
        joined = called(norm_activation.of_sum_backward, arguments, backward, results)
        masked, *gradients = (result_of(joined, index) for index in range(4))
    undone.replace_all_uses_with(masked)
    for index, old in results_of(backward).items():
        old.replace_all_uses_with(gradients[index])


def _gradients(undone: _Node) -> tuple[_Node, _Node | None]:
    """Return the activation's output gradient, as two summands if nothing else reads their sum."""
    grad = node_argument(undone, 0)
    more: Any = None
    if grad.target is aten.add.Tensor and _only_user(grad) is undone:
        more = _other_summand(grad, node_argument(grad, 0))
    return (grad, None) if more is None else (node_argument(grad, 0), more)

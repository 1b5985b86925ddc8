"""Folding the batch norm of a trained network into the convolution before it.

    c = convolution(x, w, b); n = batch_norm(c, mean, var, ...); y = leaky_relu(n)
->  y = convolution_with_activation(x, w * scale, b * scale + shift)

``scale`` and ``shift`` come from the running statistics at every call, so weights may still change.
Where the weights are larger than the images, or other operations read the convolution, one pass
over the images does it: ``y = scale_shift_activation(c, scale, shift)``.
"""

from __future__ import annotations

from typing import Any

import torch

from abele import _torch
from abele.ops import norm_activation
from abele.passes._edit import editable, finished
from abele.passes.of_lowerings.fused_normalisation import ACTIVATIONS
from abele.program import Program, is_getitem
from abele.program.dead_nodes import erase_dead_nodes, stays_in_program

aten = torch.ops.aten

_Node = torch.fx.Node


def folded_normalisation(program: Program) -> Program:
    """Replace batch norms with running statistics and the activations behind them."""
    graph = editable(program)
    folds = _Folds()
    for node in list(graph.graph.nodes):
        if node.target is aten._native_batch_norm_legit_no_training.default:
            folds.replace(node)
    erase_dead_nodes(graph, stays_in_program)
    return finished(program, graph)


class _Folds:
    """The nodes created so far: norms that share statistics share their scales and weights."""

    def __init__(self) -> None:
        self._created: dict[Any, _Node] = {}

    def replace(self, norm: _Node) -> None:
        """Replace one batch norm, unless it is of an unusual kind."""
        arguments: tuple[Any, ...] = norm.args
        x, weight, bias, mean, var, _, eps = arguments
        value = x.meta["val"]
        picked = [user for user in norm.users if is_getitem(user)]
        usual = value.dim() == 4 and value.dtype is torch.float32
        usual &= isinstance(weight, _Node) and isinstance(bias, _Node)
        if not usual or len(picked) != 1 or picked[0].args[1] != 0:
            return
        last, slope = _activation(picked[0])
        graph = norm.graph
        with graph.inserting_before(norm):
            scale, shift = self._scale_and_shift(weight, bias, mean, var, eps)
            if _may_fold(x):
                new = self._convolution(x, scale, shift, slope)
            else:
                new = self._call(norm_activation.evaluation, x, scale, shift, slope)
        new.meta = dict(last.meta)
        last.replace_all_uses_with(new)

    def _call(self, target: Any, *arguments: Any) -> _Node:
        key = (target, *(repr(each) for each in arguments))
        if key not in self._created:
            graph = next(each for each in arguments if isinstance(each, _Node)).graph
            node = graph.call_function(target, arguments)
            values = [each.meta["val"] if isinstance(each, _Node) else each for each in arguments]
            first = next(value for value in values if isinstance(value, torch.Tensor))
            with first.fake_mode:  # type: ignore[attr-defined]
                node.meta["val"] = target(*values)
            self._created[key] = node
        return self._created[key]

    def _scale_and_shift(
        self, weight: _Node, bias: _Node, mean: _Node, var: _Node, eps: float
    ) -> tuple[_Node, _Node]:
        inverse = self._call(aten.rsqrt.default, self._call(aten.add.Tensor, var, eps))
        scale = self._call(aten.mul.Tensor, weight, inverse)
        moved = self._call(aten.mul.Tensor, mean, scale)
        return scale, self._call(aten.sub.Tensor, bias, moved)

    def _convolution(self, convolution: _Node, scale: _Node, shift: _Node, slope: float) -> _Node:
        x, weight, bias, stride, padding, dilation, _, _, groups = convolution.args
        along = self._call(aten.view.default, scale, [-1, 1, 1, 1])
        scaled = self._call(aten.mul.Tensor, weight, along)
        if bias is not None:
            moved = self._call(aten.mul.Tensor, bias, scale)
            shift = self._call(aten.add.Tensor, moved, shift)
        slopes: list[float] = [] if slope == 1.0 else [slope]
        activation = ("leaky_relu" if slopes else "none", slopes, "")
        settings = (padding, stride, dilation, groups, *activation)
        return self._call(_torch.convolution_with_activation(), x, scaled, shift, *settings)


def _activation(y: _Node) -> tuple[_Node, float]:
    """Return the node whose value counts in the end, and the slope of its activation."""
    users = list(y.users)
    if len(users) == 1 and users[0].target in ACTIVATIONS:
        return users[0], ACTIVATIONS[users[0].target](users[0])
    return y, 1.0


def _may_fold(x: Any) -> bool:
    if x.target is not aten.convolution.default or len(x.users) != 1 or x.args[6]:
        return False
    if _torch.convolution_with_activation() is None:
        return False
    return 2 * x.args[1].meta["val"].numel() < x.meta["val"].numel()

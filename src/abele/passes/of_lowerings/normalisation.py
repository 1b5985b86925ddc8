"""Fusion of batch norm with its activation, and folding into the preceding convolution."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, cast

import torch

from abele import _torch
from abele._torch.copies import new_call
from abele.kernels.convolutions import DIRECT, WINOGRAD, kernel_of
from abele.ops import norm_activation
from abele.passes._edit import editable, finished
from abele.program import Program, is_getitem, node_argument
from abele.program.aliasing import erase_dead_nodes, stays_in_program
from abele.trace.fake_results import Results

aten = torch.ops.aten

_Node = torch.fx.Node


# Of images that norm kernels read and write.
_TYPES = (torch.float32, torch.bfloat16)


@dataclasses.dataclass
class _Norm:
    """A batch norm that can be fused; ``activation`` and ``backward`` may be missing."""

    node: _Node
    activation: _Node | None
    slope: float
    activation_backward: _Node | None
    backward: _Node | None


def fused_normalisation(program: Program) -> Program:
    """Fuse every training batch norm of images with its activation."""
    graph, results = editable(program), Results()
    for node in list(graph.graph.nodes):
        if node.target is aten._native_batch_norm_legit_functional.default and _plain(node):
            norm = _match(node)
            if norm is not None:
                _replace(norm, results)
    zeros: dict[Any, _Node] = {}
    for node in list(graph.graph.nodes):
        if node.target is aten.convolution_backward.default:
            _drop_zero_gradient(node, zeros)
    erase_dead_nodes(graph, stays_in_program)
    return finished(program, graph)


def _plain(node: _Node) -> bool:
    arguments: tuple[Any, ...] = node.args
    x, weight, bias, _, _, training, momentum, _ = arguments
    value = x.meta["val"]
    return (
        value.dim() == 4
        and value.dtype in _TYPES
        and value.numel() > value.shape[1]
        and isinstance(weight, _Node)
        and isinstance(bias, _Node)
        and training is True
        and isinstance(momentum, float)
    )


def results_of(node: _Node) -> dict[int, _Node]:
    """Return the getitem nodes of a node with several results, by index."""
    return {int(user.args[1]): user for user in node.users if is_getitem(user)}  # type: ignore[arg-type]


def _match(node: _Node) -> _Norm | None:
    picked = results_of(node)
    y = picked.get(0)
    if y is None:
        return None
    mean = picked.get(1)
    backward = None if mean is None else next(iter(mean.users), None)
    if backward is not None and (
        backward.target is not aten.native_batch_norm_backward.default
        or backward.args[1] is not node.args[0]
        or len(mean.users) > 1  # type: ignore[union-attr]
    ):
        return None
    if backward is not None and y in backward.args:
        return None
    norm = _Norm(node, None, 1.0, None, backward)
    return _with_activation(norm, y) or norm


def _with_activation(norm: _Norm, y: _Node) -> _Norm | None:
    """Extend a match by its activation, if nothing else reads the activation's input."""
    forward = [user for user in y.users if user.target in ACTIVATIONS]
    if len(forward) != 1:
        return None
    activation, slope = forward[0], ACTIVATIONS[forward[0].target](forward[0])
    others = [user for user in y.users if user is not activation]
    if norm.backward is None:
        if others:
            return None
        return dataclasses.replace(norm, activation=activation, slope=slope)
    grad = norm.backward.args[0]
    if not isinstance(grad, _Node) or len(grad.users) != 1:
        return None
    if not undoes(grad, activation, y, slope) or any(user is not grad for user in others):
        return None
    return dataclasses.replace(norm, activation=activation, slope=slope, activation_backward=grad)


# The slope below zero of each activation that a normalisation can take in.
ACTIVATIONS: dict[Any, Callable[[_Node], float]] = {
    aten.leaky_relu.default: lambda node: (
        float(cast("float", node.args[1])) if len(node.args) > 1 else 0.01
    ),
    aten.relu.default: lambda node: 0.0,
}


def undoes(grad: _Node, activation: _Node, y: _Node, slope: float) -> bool:
    """Return whether a node is the backward of a given activation."""
    arguments: tuple[Any, ...] = grad.args
    if grad.target is aten.leaky_relu_backward.default:
        return arguments[1:] == (y, slope, False)
    if grad.target is aten.threshold_backward.default:
        return arguments[1:] == (activation, 0) and slope == 0.0
    return False


def _replace(norm: _Norm, results: Results) -> None:
    node, graph = norm.node, norm.node.graph
    x, weight, bias, mean, var, _, momentum, eps = node.args
    with graph.inserting_before(node):
        joined = called(
            norm_activation.forward,
            (x, weight, bias, mean, var, momentum, eps, norm.slope),
            node,
            results,
        )
        y, x_copy, statistics, new_mean, new_var = (result_of(joined, i) for i in range(5))
    last = norm.activation or results_of(node)[0]
    last.replace_all_uses_with(y)
    for index, new in ((3, new_mean), (4, new_var)):
        if index in results_of(node):
            results_of(node)[index].replace_all_uses_with(new)
    if norm.backward is not None:
        _replace_backward(norm, (x_copy, weight, bias, statistics, norm.slope), results)


def _replace_backward(norm: _Norm, arguments: tuple[Any, ...], results: Results) -> None:
    assert norm.backward is not None
    backward = norm.backward
    grad = node_argument(norm.activation_backward or backward, 0)
    with backward.graph.inserting_before(backward):
        joined = called(norm_activation.backward, (grad, *arguments), backward, results)
        gradients = [result_of(joined, index) for index in range(3)]
    for index, old in results_of(backward).items():
        old.replace_all_uses_with(gradients[index])


def called(target: Any, arguments: tuple[Any, ...], origin: _Node, results: Results) -> _Node:
    """Insert a call with the source location and position of ``origin``."""
    node = new_call(origin.graph, target, arguments, origin.meta)
    values = [each.meta["val"] if isinstance(each, _Node) else each for each in arguments]
    first = next(value for value in values if isinstance(value, torch.Tensor))
    with first.fake_mode:  # type: ignore[attr-defined]
        node.meta["val"] = results.of(target, values)
    return node


def result_of(node: _Node, index: int) -> _Node:
    """Insert a getitem of one result of a node with several."""
    meta = {**node.meta, "val": node.meta["val"][index]}
    return new_call(node.graph, operator.getitem, (node, index), meta)


def _drop_zero_gradient(node: _Node, zeros: dict[Any, _Node]) -> None:
    """Replace the zero gradient of a bias before a batch norm by a constant."""
    grad, mask = node.args[0], node.args[10]
    picked = results_of(node).get(2)
    if picked is None or not mask[2] or not is_getitem(grad):  # type: ignore[index]
        return
    origin = node_argument(grad, 0)  # type: ignore[arg-type]
    if origin.target is not norm_activation.backward or grad.args[1] != 0:  # type: ignore[union-attr]
        return
    value = picked.meta["val"]
    key = tuple(value.shape), value.dtype
    if key not in zeros:
        with node.graph.inserting_before(node):
            arguments, kwargs = (list(value.shape), 0.0), {"dtype": value.dtype}
            zeros[key] = node.graph.call_function(aten.full.default, arguments, kwargs)
        zeros[key].meta = dict(picked.meta)
    picked.replace_all_uses_with(zeros[key])
    _add_nothing(zeros[key])
    node.update_arg(10, [mask[0], mask[1], False])  # type: ignore[index]


def _add_nothing(zero: _Node) -> None:
    """Remove additions of the constant ``zero`` (gradient sums of shared layers)."""
    for user in list(zero.users):
        if user.target is not aten.add.Tensor or len(user.args) != 2 or user.kwargs:
            continue
        other = user.args[1] if user.args[0] is zero else user.args[0]
        same = isinstance(other, _Node) and other.meta["val"].shape == user.meta["val"].shape
        if same and other.meta["val"].dtype == user.meta["val"].dtype:  # type: ignore[union-attr]
            user.replace_all_uses_with(other)  # type: ignore[arg-type]


def folded_normalisation(program: Program) -> Program:
    """Fuse inference batch norms with activations, folded into convolutions if possible."""
    graph = editable(program)
    folds = _Folds()
    for node in list(graph.graph.nodes):
        if node.target is aten._native_batch_norm_legit_no_training.default:
            folds.replace(node)
    erase_dead_nodes(graph, stays_in_program)
    return finished(program, graph)


class _Folds:
    """The folding of batch norms; equal scales and weights are computed once."""

    def __init__(self) -> None:
        self._created: dict[Any, _Node] = {}

    def replace(self, norm: _Node) -> None:
        """Fold one batch norm; unusual kinds stay unchanged."""
        arguments: tuple[Any, ...] = norm.args
        x, weight, bias, mean, var, _, eps = arguments
        value = x.meta["val"]
        picked = [user for user in norm.users if is_getitem(user)]
        usual = value.dim() == 4 and value.dtype in _TYPES
        usual &= isinstance(weight, _Node) and isinstance(bias, _Node)
        if not usual or len(picked) != 1 or picked[0].args[1] != 0:
            return
        last, slope = _activation(picked[0])
        graph = norm.graph
        with graph.inserting_before(norm):
            scale, shift = self._scale_and_shift(weight, bias, mean, var, eps)
            if _may_fold(x):
                if slope == 0.0 and kernel_of(x) not in (DIRECT, WINOGRAD):
                    last, slope = picked[0], 1.0  # oneDNN's ReLU of NaN is zero
                new = self._convolution(x, scale, shift, slope)
            else:
                new = self._call(norm_activation.evaluation, x, scale, shift, slope)
        new.meta = dict(last.meta)
        last.replace_all_uses_with(new)

    def _wide(self, vector: _Node) -> _Node:
        if vector.meta["val"].dtype is torch.float32:
            return vector
        return self._call(aten._to_copy.default, vector, dtype=torch.float32)

    def _call(self, target: Any, *arguments: Any, **options: Any) -> _Node:
        key = (target, *(repr(each) for each in arguments))
        if key not in self._created:
            graph = next(each for each in arguments if isinstance(each, _Node)).graph
            node = graph.call_function(target, arguments, options)
            values = [each.meta["val"] if isinstance(each, _Node) else each for each in arguments]
            first = next(value for value in values if isinstance(value, torch.Tensor))
            with first.fake_mode:  # type: ignore[attr-defined]
                node.meta["val"] = target(*values, **options)
            self._created[key] = node
        return self._created[key]

    def _scale_and_shift(
        self, weight: _Node, bias: _Node, mean: _Node, var: _Node, eps: float
    ) -> tuple[_Node, _Node]:
        weight, bias, mean, var = map(self._wide, (weight, bias, mean, var))
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
    """Return the activation node that follows (or the node itself), and its slope."""
    users = list(y.users)
    if len(users) == 1 and users[0].target in ACTIVATIONS:
        return users[0], ACTIVATIONS[users[0].target](users[0])
    return y, 1.0


def _may_fold(x: Any) -> bool:
    if x.target is not aten.convolution.default or len(x.users) != 1 or x.args[6]:
        return False
    if x.meta["val"].dtype is not torch.float32:  # weights would be rounded once more
        return False
    if _torch.convolution_with_activation() is None:
        return False
    return 2 * x.args[1].meta["val"].numel() < x.meta["val"].numel()

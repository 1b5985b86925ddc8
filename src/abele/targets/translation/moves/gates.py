"""Elementwise operators with two results, or that read two halves of a tensor."""

from __future__ import annotations

from typing import Any

import torch

from abele.targets.translation.moves.arguments import arguments
from abele.targets.translation.moves.slices import sliced

aten = torch.ops.aten


def log_sigmoid(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.log_sigmoid_forward``: the result, and what its backward reads."""
    x = translator.places[arguments(node)[0]]
    if not x.dtype.is_floating_point:
        return False
    results = [translator.new(x.shape, x.dtype) for _ in (0, 1)]
    translator.pointwise([x], "abele::log_sigmoid({0})".format, results[0])
    translator.pointwise([x], "abele::exp(-std::fabs({0}))".format, results[1])
    translator.places[node] = results
    return True


def prelu_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten._prelu_kernel_backward``: the gradients of the input and, by element, of the slope."""
    reads = [translator.places[each] for each in arguments(node)]
    results = [translator.new(tuple(v.shape), v.dtype) for v in node.meta["val"]]
    translator.pointwise(reads, "({1} > 0 ? {0} : {2} * {0})".format, results[0])
    translator.pointwise(reads[:2], "({1} > 0 ? 0 : {1} * {0})".format, results[1])
    translator.places[node] = results
    return True


def glu(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.glu``."""
    x = translator.places[arguments(node)[0]]
    halves = _halves(x, arguments(node)[1:])
    result = translator.new_like(node)
    translator.pointwise(halves, "({0} * abele::sigmoid({1}))".format, result)
    translator.places[node] = result
    return True


def glu_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.glu_backward``."""
    grad, x = (translator.places[each] for each in arguments(node)[:2])
    result = translator.new(x.shape, x.dtype)
    first, second = _halves(result, arguments(node)[2:])
    a, b = _halves(x, arguments(node)[2:])
    translator.pointwise([grad, b], "({0} * abele::sigmoid({1}))".format, first)
    text = "abele::gate_backward({0}, {1}, {2})".format
    translator.pointwise([grad, a, b], text, second)
    translator.places[node] = result
    return True


def _halves(place: Any, dims: tuple[Any, ...]) -> list[Any]:
    dim = (dims[0] if dims else -1) % len(place.shape)
    size = place.shape[dim] // 2
    return [sliced(place, dim, start, size, 1) for start in (0, size)]


HANDLERS = {
    aten.log_sigmoid_forward.default: log_sigmoid,
    aten._prelu_kernel_backward.default: prelu_backward,
    aten.glu.default: glu,
    aten.glu_backward.default: glu_backward,
}

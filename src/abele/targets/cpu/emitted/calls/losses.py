"""Softmax, label losses, and elementwise losses of two tensors."""

from __future__ import annotations

import math
from typing import Any

import torch

from abele.targets.cpu.emitted.calls import shared
from abele.targets.cpu.emitted.calls.reductions import summed
from abele.targets.index_checks import is_checked
from abele.targets.translation.movement import arguments
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Place
from abele.targets.translation.translate import Handler

aten = torch.ops.aten

_FLOATS_PER_THREAD = 4096
_LABELS_PER_THREAD = 4096
_COLUMNS = 64


def softmax(kind: int) -> Handler:
    """Return a handler that translates a softmax to a kernel call; kinds are those of ``abi.h``."""

    def handler(translator: Any, node: torch.fx.Node) -> Any:
        x, dim, *_ = arguments(node)
        return _softmax(translator, node, "softmax", kind, [translator.places[x]], dim)

    return handler


def softmax_backward(log: bool) -> Handler:
    """Return a handler that translates the backward of softmax or log softmax."""

    def handler(translator: Any, node: torch.fx.Node) -> Any:
        grad, y, dim, _ = arguments(node)
        places = [translator.places[each] for each in (grad, y)]
        return _softmax(translator, node, "softmax_backward", log, places, dim)

    return handler


def _softmax(
    translator: Any, node: torch.fx.Node, name: str, kind: int, reads: list[Place], dim: int
) -> Any:
    if any(p.dtype is not torch.float32 or not p.size or not p.shape for p in reads):
        return None
    if node.meta["val"].dtype is not torch.float32:
        return None
    reads = [translator.contiguous(each) for each in reads]
    outer, size, inner = _around(reads[0].shape, dim)
    result = translator.new(reads[0].shape, torch.float32)
    most = max(1, min(outer * -(-inner // _COLUMNS), result.size // _FLOATS_PER_THREAD))
    pointers = ", ".join(f"{{{i}}}" for i in range(len(reads) + 1))
    text = shared.call(name, most, (kind,), f"{outer}, {size}, {inner}, {pointers}")
    translator.add(Call(reads, [result], text))
    return result


def _around(shape: tuple[int, ...], dim: int) -> tuple[int, int, int]:
    """Return the element counts before, along and after a dimension of a shape."""
    dim %= len(shape)
    return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])


def nll_loss(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.nll_loss_forward`` and ``aten.nll_loss2d_forward`` to kernel calls."""
    x, target, weight, kind, ignored = arguments(node)
    reads = _labelled(translator, x, (x, target, weight))
    if reads is None:
        return None
    results = [translator.new(tuple(v.shape), v.dtype) for v in node.meta["val"]]
    outer, size, inner = _around(reads[0].shape, 1)
    most = max(1, min(16, outer * inner // _LABELS_PER_THREAD))
    pointers = "{0}, {1}, {2}, {3}, {4}" if weight else "{0}, {1}, nullptr, {2}, {3}"
    given = f"{outer}, {size}, {inner}, {ignored}, {pointers}"
    text = shared.call("nll_loss", most, (kind,), given)
    translator.add(Call(reads, results, text))
    return results


def nll_loss_backward(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.nll_loss_backward`` and its 2d variant to kernel calls."""
    grad, x, target, weight, kind, ignored, total = arguments(node)
    reads = _labelled(translator, x, (grad, target, weight, total))
    if reads is None:
        return None
    result = translator.new(translator.places[x].shape, torch.float32)
    outer, size, inner = _around(result.shape, 1)
    most = max(1, min(outer * -(-inner // _COLUMNS), result.size // _FLOATS_PER_THREAD))
    pointers = "{0}, {1}, {2}, {3}, {4}" if weight else "{0}, {1}, nullptr, {2}, {3}"
    given = f"{outer}, {size}, {inner}, {ignored}, {pointers}"
    text = shared.call("nll_loss_backward", most, (kind,), given)
    translator.add(Call(reads, [result], text))
    return result


def _labelled(translator: Any, x: Any, nodes: tuple[Any, ...]) -> list[Place] | None:
    places = [translator.places[each] for each in (x, *nodes) if each is not None]
    kinds = [place.dtype for place in places]
    known = kinds.pop(2) is torch.int64 and {*kinds} == {torch.float32}  # the labels, and the rest
    if not known or len(places[0].shape) < 2 or not is_checked(nodes[1], translator.graph):
        return None
    return [*map(translator.contiguous, places[1:])]


# -- losses that compare two tensors element by element

_MEAN, _SUM = 1, 2


def loss(text: str, limit: float | None = None, *, weighted: bool = False) -> Handler:
    """Return a handler that translates an elementwise loss of two tensors.

    Args:
        text: C++ of one element's loss: ``{0}`` and ``{1}`` are the tensors, ``{2}`` a threshold.
        limit: default of the operator's threshold argument; None if it has none.
        weighted: the third argument may be an elementwise weight, which is not translated.
    """

    def handler(translator: Any, node: torch.fx.Node) -> Any:
        a, b, *rest = arguments(node)
        if weighted and rest and rest.pop(0) is not None:
            return None
        kind = int(rest[0]) if rest else _MEAN
        places = _compared(translator, a, b)
        if places is None:
            return None
        limits = [] if limit is None else [float(rest[1]) if len(rest) > 1 else limit]
        result = translator.new_like(node)
        several = kind in (_MEAN, _SUM)
        each = translator.new(places[0].shape, result.dtype) if several else result
        translator.pointwise([*places, *limits], text.format, each)
        if several:
            scale = 1 / each.size if kind == _MEAN else 1.0
            translator.add(summed(each, result, set(range(len(each.shape))), scale))
        return result

    return handler


def gradient(text: str, *, limited: bool = False, weighted: bool = False) -> Handler:
    """Return a handler that translates the gradient of an elementwise loss.

    Args:
        text: C++ of one element: ``{0}`` is the loss gradient, ``{1}`` and ``{2}`` are the tensors,
            ``{3}`` is the factor of a mean, ``{4}`` a threshold.
        limited: the operator has a threshold argument.
        weighted: as for ``loss``.
    """

    def handler(translator: Any, node: torch.fx.Node) -> Any:
        grad, a, b, *rest = arguments(node)
        if weighted and rest and rest.pop(0) is not None:
            return None
        kind = int(rest[0]) if rest else _MEAN
        places = _compared(translator, a, b)
        if places is None:
            return None
        factor = 1 / places[0].size if kind == _MEAN else 1.0
        limits = [float(rest[1])] if limited else []
        result = translator.new_like(node)
        operands = [translator.places[grad], *places, factor, *limits]
        translator.pointwise(operands, text.format, result)
        return result

    return handler


def _compared(translator: Any, *nodes: Any) -> list[Place] | None:
    """Return both operands of a loss contiguous; None unless float32 of one shape."""
    places = [translator.places[each] for each in nodes]
    same = places[0].shape == places[1].shape and places[0].size
    if not same or any(each.dtype is not torch.float32 for each in places):
        return None
    return [translator.contiguous(each) for each in places]


_SMOOTH = (
    "(std::fabs({0} - {1}) < {2} ? 0.5f * ({0} - {1}) * ({0} - {1}) / {2} "
    ": std::fabs({0} - {1}) - 0.5f * {2})"
)
_SMOOTH_SLOPE = (
    "({1} - {2} <= -{4} ? -{3} * {0} : {1} - {2} >= {4} ? {3} * {0} "
    ": {3} * ({1} - {2}) * {0} / {4})"
)
_ENTROPY_SLOPE = "({0} * {3} * ({1} - {2}) / abele::maximum((1 - {1}) * {1}, 1e-12f))"

HANDLERS = {
    aten._softmax.default: softmax(0),
    aten._log_softmax.default: softmax(1),
    aten._safe_softmax.default: softmax(2),
    aten._softmax_backward_data.default: softmax_backward(log=False),
    aten._log_softmax_backward_data.default: softmax_backward(log=True),
    aten.nll_loss_forward.default: nll_loss,
    aten.nll_loss2d_forward.default: nll_loss,
    aten.nll_loss_backward.default: nll_loss_backward,
    aten.nll_loss2d_backward.default: nll_loss_backward,
    aten.mse_loss.default: loss("(({0} - {1}) * ({0} - {1}))"),
    aten.mse_loss_backward.default: gradient("({3} * 2 * ({1} - {2}) * {0})"),
    aten.smooth_l1_loss.default: loss(_SMOOTH, 1.0),
    aten.smooth_l1_loss_backward.default: gradient(_SMOOTH_SLOPE, limited=True),
    aten.binary_cross_entropy.default: loss("abele::cross_entropy({0}, {1})", weighted=True),
    aten.binary_cross_entropy_backward.default: gradient(_ENTROPY_SLOPE, weighted=True),
}

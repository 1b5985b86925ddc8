"""Softmax and losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from abele.targets.cpu.emitted.calls import shared
from abele.targets.translation.movement import arguments
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Place

aten = torch.ops.aten

_FLOATS_PER_THREAD = 4096
_LABELS_PER_THREAD = 4096
_COLUMNS = 64


def softmax(log: bool) -> Callable[..., bool]:
    """``aten._softmax`` and ``aten._log_softmax``."""

    def handler(translator: Any, node: torch.fx.Node) -> bool:
        x, dim, _ = arguments(node)
        return _softmax(translator, node, "softmax", log, [translator.places[x]], dim)

    return handler


def softmax_backward(log: bool) -> Callable[..., bool]:
    """``aten._softmax_backward_data`` and ``aten._log_softmax_backward_data``."""

    def handler(translator: Any, node: torch.fx.Node) -> bool:
        grad, y, dim, _ = arguments(node)
        places = [translator.places[each] for each in (grad, y)]
        return _softmax(translator, node, "softmax_backward", log, places, dim)

    return handler


def _softmax(
    translator: Any, node: torch.fx.Node, name: str, log: bool, reads: list[Place], dim: int
) -> bool:
    if any(p.dtype is not torch.float32 or not p.size or not p.shape for p in reads):
        return False
    if node.meta["val"].dtype is not torch.float32:
        return False
    reads = [translator.contiguous(each) for each in reads]
    outer, size, inner = _around(reads[0].shape, dim)
    result = translator.new(reads[0].shape, torch.float32)
    most = max(1, min(outer * -(-inner // _COLUMNS), result.size // _FLOATS_PER_THREAD))
    pointers = ", ".join(f"{{{i}}}" for i in range(len(reads) + 1))
    text = shared.call(name, most, (log,), f"{outer}, {size}, {inner}, {pointers}")
    translator.add(Call(reads, [result], text))
    translator.places[node] = result
    return True


def _around(shape: tuple[int, ...], dim: int) -> tuple[int, int, int]:
    """Return the number of elements outside a dimension, along it, and inside it."""
    dim %= len(shape)
    return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])


def nll_loss(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.nll_loss_forward`` and ``aten.nll_loss2d_forward``."""
    x, target, weight, kind, ignored = arguments(node)
    reads = _labelled(translator, x, (x, target, weight))
    if reads is None:
        return False
    results = [translator.new(tuple(v.shape), v.dtype) for v in node.meta["val"]]
    outer, size, inner = _around(reads[0].shape, 1)
    most = max(1, min(16, outer * inner // _LABELS_PER_THREAD))
    pointers = "{0}, {1}, {2}, {3}, {4}" if weight else "{0}, {1}, nullptr, {2}, {3}"
    given = f"{outer}, {size}, {inner}, {ignored}, {pointers}"
    text = shared.call("nll_loss", most, (kind,), given)
    translator.add(Call(reads, results, text))
    translator.places[node] = results
    return True


def nll_loss_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.nll_loss_backward`` and ``aten.nll_loss2d_backward``."""
    grad, x, target, weight, kind, ignored, total = arguments(node)
    reads = _labelled(translator, x, (grad, target, weight, total))
    if reads is None:
        return False
    result = translator.new(translator.places[x].shape, torch.float32)
    outer, size, inner = _around(result.shape, 1)
    most = max(1, min(outer * -(-inner // _COLUMNS), result.size // _FLOATS_PER_THREAD))
    pointers = "{0}, {1}, {2}, {3}, {4}" if weight else "{0}, {1}, nullptr, {2}, {3}"
    given = f"{outer}, {size}, {inner}, {ignored}, {pointers}"
    text = shared.call("nll_loss_backward", most, (kind,), given)
    translator.add(Call(reads, [result], text))
    translator.places[node] = result
    return True


def _labelled(translator: Any, x: Any, nodes: tuple[Any, ...]) -> list[Place] | None:
    place, target = translator.places[x], translator.places[nodes[1]]
    if place.dtype is not torch.float32 or len(place.shape) < 2 or target.dtype is not torch.int64:
        return None
    return [translator.contiguous(translator.places[each]) for each in nodes if each is not None]


HANDLERS = {
    aten._softmax.default: softmax(log=False),
    aten._log_softmax.default: softmax(log=True),
    aten._softmax_backward_data.default: softmax_backward(log=False),
    aten._log_softmax_backward_data.default: softmax_backward(log=True),
    aten.nll_loss_forward.default: nll_loss,
    aten.nll_loss2d_forward.default: nll_loss,
    aten.nll_loss_backward.default: nll_loss_backward,
    aten.nll_loss2d_backward.default: nll_loss_backward,
}

"""Softmax, negative log-likelihood, and tables of vectors."""

from __future__ import annotations

import math
from typing import Any

import torch

from abele.targets.cpu.emitted.operations import Call
from abele.targets.cpu.emitted.places import Place

aten = torch.ops.aten

_FLOATS_PER_THREAD = 4096


def log_softmax(translator: Any, node: torch.fx.Node) -> bool:
    """``aten._log_softmax``."""
    x, dim, _ = node.args
    return _softmax(translator, node, "log_softmax", [translator.places[x]], dim)


def log_softmax_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten._log_softmax_backward_data``."""
    grad, y, dim, _ = node.args
    places = [translator.places[each] for each in (grad, y)]
    return _softmax(translator, node, "log_softmax_backward", places, dim)


def _softmax(translator: Any, node: torch.fx.Node, name: str, reads: list[Place], dim: int) -> bool:
    if any(p.dtype is not torch.float32 or not p.size or not p.shape for p in reads):
        return False
    reads = [translator.contiguous(each) for each in reads]
    outer, size, inner = _around(reads[0].shape, dim)
    result = translator.new(reads[0].shape, torch.float32)
    most = max(1, min(outer * inner, result.size // _FLOATS_PER_THREAD))
    arguments = ", ".join(f"{{{i}}}" for i in range(len(reads) + 1))
    text = f"abele::{name}<{most}>({outer}, {size}, {inner}, {arguments}, threads)"
    translator.add(Call(0, reads, [result], text, result.size * 8))
    translator.places[node] = result
    return True


def _around(shape: tuple[int, ...], dim: int) -> tuple[int, int, int]:
    """How many elements lie outside a dimension, along it, and inside it."""
    dim %= len(shape)
    return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])


def nll_loss(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.nll_loss_forward`` and ``aten.nll_loss2d_forward`` without weights."""
    x, target, weight, kind, ignored = node.args
    place = translator.places[x]
    if weight is not None or place.dtype is not torch.float32 or len(place.shape) < 2:
        return False
    reads = [translator.contiguous(translator.places[each]) for each in (x, target)]
    results = [translator.new(tuple(v.shape), v.dtype) for v in node.meta["val"]]
    outer, size, inner = _around(place.shape, 1)
    text = (
        f"abele::nll_loss<{kind}>({outer}, {size}, {inner}, {ignored}, {{0}}, {{1}}, {{2}}, {{3}})"
    )
    translator.add(Call(0, reads, results, text, outer * inner))
    translator.places[node] = results
    return True


def nll_loss_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.nll_loss_backward`` and ``aten.nll_loss2d_backward`` without weights."""
    grad, x, target, weight, kind, ignored, total = node.args
    place = translator.places[x]
    if weight is not None or place.dtype is not torch.float32 or len(place.shape) < 2:
        return False
    reads = [translator.contiguous(translator.places[each]) for each in (grad, target, total)]
    result = translator.new(place.shape, torch.float32)
    outer, size, inner = _around(place.shape, 1)
    text = (
        f"abele::nll_loss_backward<{kind}>({outer}, {size}, {inner}, {ignored}, "
        "{0}, {1}, {2}, {3})"
    )
    translator.add(Call(0, reads, [result], text, result.size))
    translator.places[node] = result
    return True


def embedding(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.embedding``."""
    table, rows = (translator.contiguous(translator.places[each]) for each in node.args[:2])
    if table.dtype is not torch.float32 or rows.dtype is not torch.int64:
        return False
    result = translator.new((*rows.shape, table.shape[1]), table.dtype)
    text = f"abele::embedding({rows.size}, {table.shape[1]}, {{0}}, {{1}}, {{2}})"
    translator.add(Call(0, [table, rows], [result], text, result.size))
    translator.places[node] = result
    return True


def embedding_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.embedding_dense_backward`` that does not scale by frequency."""
    grad, rows, size, padding, scaled = node.args
    grad, rows = (translator.contiguous(translator.places[each]) for each in (grad, rows))
    if scaled or grad.dtype is not torch.float32 or rows.dtype is not torch.int64:
        return False
    width = grad.shape[-1]
    result = translator.new((size, width), grad.dtype)
    text = (
        f"abele::embedding_backward({rows.size}, {width}, {size}, {padding}, {{0}}, {{1}}, {{2}})"
    )
    translator.add(Call(0, [grad, rows], [result], text, grad.size))
    translator.places[node] = result
    return True


HANDLERS = {
    aten._log_softmax.default: log_softmax,
    aten._log_softmax_backward_data.default: log_softmax_backward,
    aten.nll_loss_forward.default: nll_loss,
    aten.nll_loss2d_forward.default: nll_loss,
    aten.nll_loss_backward.default: nll_loss_backward,
    aten.nll_loss2d_backward.default: nll_loss_backward,
    aten.embedding.default: embedding,
    aten.embedding_dense_backward.default: embedding_backward,
}

"""Embedding lookups and their gradients as kernel calls."""

from __future__ import annotations

from typing import Any

import torch

from abele.targets.cpu.emitted.calls import shared
from abele.targets.index_checks import is_checked
from abele.targets.translation.movement import arguments
from abele.targets.translation.operations import Call

aten = torch.ops.aten

_FLOATS_OF_ROWS = 8192


def embedding(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.embedding`` to a kernel call, if its indices are bounds-checked."""
    if not is_checked(arguments(node)[1], translator.graph):
        return None
    table, rows = (translator.contiguous(translator.places[each]) for each in arguments(node)[:2])
    if table.dtype is not torch.float32 or rows.dtype is not torch.int64:
        return None
    result = translator.new((*rows.shape, table.shape[1]), table.dtype)
    text = f"abele::embedding({rows.size}, {table.shape[1]}, {{0}}, {{1}}, {{2}})"
    translator.add(Call([table, rows], [result], text))
    return result


def embedding_backward(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.embedding_dense_backward`` without frequency scaling."""
    grad, rows, size, padding, scaled = arguments(node)
    if not is_checked(rows, translator.graph):
        return None
    grad, rows = (translator.contiguous(translator.places[each]) for each in (grad, rows))
    if scaled or grad.dtype is not torch.float32 or rows.dtype is not torch.int64:
        return None
    width = grad.shape[-1]
    most = max(1, min(-(-width // 16), (grad.size + size * width) // _FLOATS_OF_ROWS))
    result = translator.new((size, width), grad.dtype)
    given = f"{rows.size}, {width}, {size}, {padding}, {{0}}, {{1}}, {{2}}"
    text = shared.call("embedding_backward", most, (), given)
    translator.add(Call([grad, rows], [result], text))
    return result


HANDLERS = {
    aten.embedding.default: embedding,
    aten.embedding_dense_backward.default: embedding_backward,
}

"""Tables of attention."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import Any

import torch

from abele.kernels.binding import Attention, Steps
from abele.kernels.cases.case import (
    Case,
    Table,
    Tensor,
    call,
    double,
    gradients,
    numbers,
    threads_of,
    unwritten,
)

_SAMPLES, _HEADS = 2, 2


def _sizes() -> Iterator[tuple[int, int, int, int, bool]]:
    """Yield queries, keys, depth, depth of values and whether later keys are hidden."""
    for index in range(1, 34):
        yield 1 + 11 * index % 40, 1 + 7 * index % 40, index, 1 + 5 * index % 33, index % 2 == 0
    yield from ((64, 64, 32, 32, True), (70, 200, 16, 48, False), (150, 130, 24, 40, True))


class _Heads:
    """Operands of an attention and its exact result."""

    def __init__(self, sizes: tuple[int, int, int, int, bool]):
        queries, keys, depth, value_depth, causal = sizes
        scale = 1 / math.sqrt(depth)
        self.described = Attention(
            _SAMPLES, _HEADS, queries, keys, depth, value_depth, int(causal), scale
        )
        self.named = {
            **{"queries": queries, "keys": keys, "depth": depth},
            **{"value_depth": value_depth, "causal": int(causal)},
        }
        shapes = (queries, depth), (keys, depth), (keys, value_depth), (queries, value_depth)
        self.q, self.k, self.v, self.grad = (
            numbers(_SAMPLES, _HEADS, *each, seed=seed) for seed, each in enumerate(shapes)
        )
        self.leaves = double(self.q, self.k, self.v)
        q, k, v = self.leaves
        scores = scale * q @ k.mT
        if causal:
            hidden = torch.ones(queries, keys, dtype=torch.bool, device="cpu").triu(1)
            scores = scores.masked_fill(hidden, -math.inf)
        self.y, self.logarithms = scores.softmax(-1) @ v, scores.logsumexp(-1)


def _steps(*tensors: Tensor) -> ctypes.Array[Any]:
    return (Steps * len(tensors))(*(each.stride()[:3] for each in tensors))


def _forward(library: ctypes.CDLL) -> Iterator[Case]:
    for index, sizes in enumerate(_sizes()):
        heads = _Heads(sizes)
        q, k, v = heads.q, heads.k, heads.v
        y, logarithms = results = unwritten(heads.y.shape, heads.logarithms.shape)
        given = heads.described, _steps(q, k, v, y), q, k, v, y, logarithms
        call(library.abele_attention, *given, threads_of(index))
        yield Case(heads.named, results, [heads.y.detach(), heads.logarithms.detach()])


def _backward(library: ctypes.CDLL) -> Iterator[Case]:
    for index, sizes in enumerate(_sizes()):
        heads = _Heads(sizes)
        exact = gradients(heads.y, heads.leaves, heads.grad.double())
        results = unwritten(*(each.shape for each in exact))
        y, logarithms = heads.y.detach().float(), heads.logarithms.detach().float()
        given = heads.grad, heads.q, heads.k, heads.v, y
        function, threads = library.abele_attention_backward, threads_of(index)
        call(
            function,
            heads.described,
            _steps(*given, *results),
            *given,
            logarithms,
            *results,
            threads,
        )
        yield Case(heads.named, results, exact)


TABLES: dict[str, Table] = {
    "abele_attention": _forward,
    "abele_attention_backward": _backward,
}

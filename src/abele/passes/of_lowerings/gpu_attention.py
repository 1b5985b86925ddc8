"""Attention as GPUs compute it, in place of the operator that torch has for processors.

    y, logs = _scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
->  y, logs, _, _ = _scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)

Plain PyTorch calls the latter on GPUs where the former is called on processors. Its kernels take
heads of a multiple of 8 numbers and masks whose rows are aligned; others are filled up with zeros,
which change no score, and cut afterwards.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from abele.passes._edit import inserted, rewritten_where
from abele.program import Program

aten = torch.ops.aten

FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_ALIGNED = 8

_Node = torch.fx.Node


def gpu_attention(program: Program) -> Program:
    """Replace attention of processors, also in bodies of loops."""
    return rewritten_where(program, _is_attention, _rewrite)


def _is_attention(node: _Node) -> bool:
    return node.target in (FORWARD, BACKWARD)


def _rewrite(node: _Node) -> None:
    writer = _Writer(node)
    if node.target is FORWARD:
        writer.forward()
    else:
        writer.backward()


class _Writer:
    """Writes nodes in front of one that they replace."""

    def __init__(self, node: _Node):
        self._node = node

    def forward(self) -> None:
        q, k, v = self._arguments(3)
        options = self._options(3)
        size: int = v.meta["val"].shape[-1]
        mask = self._mask(options["attn_mask"], q, k)
        padded = [self._padded(each) for each in (q, k, v)]
        scale = _scale(options["scale"], q)
        call = aten._scaled_dot_product_efficient_attention.default
        made = self._call(call, *padded, mask, True, 0.0, options["is_causal"], scale=scale)
        self._take_results(made, [size, None])

    def backward(self) -> None:
        grad, q, k, v, y, logs = self._arguments(6)
        options = self._options(6)
        sizes = [each.meta["val"].shape[-1] for each in (q, k, v)]
        mask = self._mask(options["attn_mask"], q, k)
        padded = [self._padded(each) for each in (grad, q, k, v)]
        empty = self._call(aten.zeros.default, [], dtype=torch.int64, device=q.meta["val"].device)
        results = self._padded(y), logs, empty, empty
        wanted = [True, True, True, False]
        call = aten._scaled_dot_product_efficient_attention_backward.default
        made = self._call(
            call,
            *(padded[0], *padded[1:], mask, *results, 0.0, wanted, options["is_causal"]),
            scale=_scale(options["scale"], q),
        )
        self._take_results(made, sizes)

    def _arguments(self, count: int) -> list[_Node]:
        given: Any = self._node.args[:count]
        return list(given)

    def _options(self, first: int) -> dict[str, Any]:
        """Options, which are positional or named: dropout comes before them and is 0."""
        names = ("dropout_p", "is_causal", "attn_mask", "scale")
        positional = dict(zip(names, self._node.args[first:], strict=False))
        defaults = {"dropout_p": 0.0, "is_causal": False, "attn_mask": None, "scale": None}
        return {**defaults, **positional, **self._node.kwargs}

    def _take_results(self, made: _Node, sizes: list[int | None]) -> None:
        """Let users of results read the new node's, without what was filled up."""
        for user in list(self._node.users):
            index: Any = user.args[1]
            with self._node.graph.inserting_before(user):
                result = self._at(user, operator.getitem, made, index)
                size = sizes[int(index)]
                if size is not None and size % _ALIGNED:
                    result = self._at(user, aten.slice.Tensor, result, -1, 0, size)
            user.replace_all_uses_with(result)
            self._node.graph.erase_node(user)
        self._node.graph.erase_node(self._node)

    def _at(self, place: _Node, target: Any, *arguments: Any) -> _Node:
        node = self._node.graph.call_function(target, arguments)
        node.meta = dict(place.meta)
        return node

    def _call(self, target: Any, *arguments: Any, **options: Any) -> _Node:
        return inserted(self._node, target, *arguments, **options)

    def _padded(self, node: _Node) -> _Node:
        """A tensor whose last size is aligned."""
        missing = -node.meta["val"].shape[-1] % _ALIGNED
        return self._call(aten.constant_pad_nd.default, node, [0, missing]) if missing else node

    def _mask(self, mask: _Node | None, q: _Node, k: _Node) -> _Node | None:
        """A mask for each head, whose rows are aligned in memory."""
        if mask is None:
            return None
        columns = k.meta["val"].shape[-2]
        missing = -columns % _ALIGNED
        # Also where nothing is missing: a mask may be a slice of other memory.
        padded = self._call(aten.constant_pad_nd.default, mask, [0, missing])
        if missing:
            padded = self._call(aten.slice.Tensor, padded, -1, 0, columns)
        shape = [*q.meta["val"].shape[:-1], columns]
        return self._call(aten.expand.default, padded, shape)


def _scale(scale: float | None, q: _Node) -> float:
    return 1 / math.sqrt(q.meta["val"].shape[-1]) if scale is None else scale

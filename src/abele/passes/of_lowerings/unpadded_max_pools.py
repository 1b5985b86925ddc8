"""Replacement of max pooling over windows inside the image by our own kernel.

    a = max_pool2d_with_indices(x, [2, 2], [2, 2])   ->   a = max_pool(x)

Generated code compares pixel by pixel; the kernel compares eight windows at a time. Values and
indices are the same to the bit.
"""

from __future__ import annotations

from typing import Any

import torch

from abele.ops import max_pool
from abele.passes._edit import editable, finished, substitute
from abele.program import Program

aten = torch.ops.aten


def unpadded_max_pools(program: Program) -> Program:
    """Replace max pools of 2x2 windows that overlap neither each other nor a border."""
    graph = editable(program)
    for node in graph.graph.nodes:
        arguments: tuple[Any, ...] = node.args
        if node.target is aten.max_pool2d_with_indices.default and _is_supported(*arguments):
            substitute(node, max_pool.forward, (arguments[0],))
    return finished(program, graph)


def _is_supported(x: torch.fx.Node, *settings: Any) -> bool:
    value = x.meta["val"]
    return max_pool.is_two_by_two(value, *settings) and value.is_contiguous()

"""Float32 GEMMs with bfloat16 factors, which ``torch.set_float32_matmul_precision`` allows.

    y = mm(x, w)   ->   y = mm(float32(bfloat16(x)), float32(bfloat16(w)))

Products of two bfloat16 numbers are exact in float32, so the interpreter computes what processors
with instructions for bfloat16 compute: sums, results and everything else stay float32. Generated
code reads the bfloat16 factors.
"""

from __future__ import annotations

import math

import torch

from abele.ops.half_products import has_bfloat16_products
from abele.passes._edit import editable, finished, inserted
from abele.program import Program, is_view, node_argument

aten = torch.ops.aten

_GEMMS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
_CAST = aten._to_copy.default
# With fewer FMAs, or fewer for each element of a factor, rounding takes longer than it saves.
_LEAST_FMAS, _LEAST_REUSE = 2**20, 64

_Node = torch.fx.Node


def rounded_products(program: Program) -> Program:
    """Round the factors of large float32 GEMMs to bfloat16 where the processor is faster at it."""
    if not any(map(_is_faster, program.graph.graph.nodes)):
        return program
    graph = editable(program)
    rounded: dict[_Node, _Node] = {}
    for node in filter(_is_faster, list(graph.graph.nodes)):
        for index in (-2, -1):
            factor = node_argument(node, len(node.args) + index)
            node.update_arg(len(node.args) + index, _rounded(factor, node, rounded))
    for node in reversed(list(graph.graph.nodes)):
        if is_view(node) and not node.users:
            graph.graph.erase_node(node)
    return finished(program, graph)


def has_rounded_factors(node: _Node) -> bool:
    """Return whether a node is a float32 GEMM whose factors were rounded to bfloat16."""
    if node.target not in _GEMMS or len(node.args) < 2:
        return False
    casts = [_base(node_argument(node, len(node.args) + index)) for index in (-2, -1)]
    return all(
        each.target is _CAST
        and each.meta["val"].dtype is torch.float32
        and node_argument(each, 0).meta["val"].dtype is torch.bfloat16
        for each in casts
    )


def _is_faster(node: _Node) -> bool:
    if node.target not in _GEMMS or not has_bfloat16_products():
        return False
    a, b = (node_argument(node, len(node.args) + index).meta["val"] for index in (-2, -1))
    if any(each.dtype is not torch.float32 or each.device.type != "cpu" for each in (a, b)):
        return False
    fmas = a.numel() * b.shape[-1]
    # Two neighbours along the inner dimension are multiplied by one instruction.
    even = a.shape[-1] % 2 == 0
    return even and fmas >= max(_LEAST_FMAS, _LEAST_REUSE * (a.numel() + b.numel()))


def _base(node: _Node) -> _Node:
    """Return the tensor of which a node is a view with all elements in another shape or order."""
    while is_view(node) and node.target is not aten.as_strided.default:
        base = node_argument(node, 0)
        if math.prod(base.meta["val"].shape) != math.prod(node.meta["val"].shape):
            break
        node = base
    return node


def _rounded(factor: _Node, reader: _Node, rounded: dict[_Node, _Node]) -> _Node:
    """Return a factor's float32 copy that was rounded to bfloat16, which all GEMMs share."""
    base = _base(factor)
    if not base.meta["val"].is_contiguous():  # a copy of it has other strides than its views
        base = factor
    if base not in rounded:
        rounded[base] = inserted(reader, _CAST, base, dtype=torch.bfloat16)
    made = inserted(reader, _CAST, rounded[base], dtype=torch.float32)
    views: list[_Node] = []
    while factor is not base:
        views.append(factor)
        factor = node_argument(factor, 0)
    for view in reversed(views):
        made = inserted(reader, view.target, made, *view.args[1:], **view.kwargs)
    return made

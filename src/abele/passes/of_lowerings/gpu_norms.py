"""Norms of half numbers with weights of float32, in float32 throughout.

    y = native_layer_norm(x, [8], weight, bias, eps)         # x half, weight float32
->  y = half(native_layer_norm(float32(x), [8], weight, bias, eps))

The kernels of processors take both types; those of GPUs take one.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from abele.passes._edit import rewritten_where
from abele.program import Program

aten = torch.ops.aten

_NORMS = {
    aten.native_layer_norm.default,
    aten.native_layer_norm_backward.default,
    aten.native_group_norm.default,
    aten.native_group_norm_backward.default,
}
_HALF = (torch.float16, torch.bfloat16)


def gpu_norms(program: Program) -> Program:
    """Compute norms of two types in the wider one, also in bodies of loops."""
    return rewritten_where(program, _is_mixed, _widen)


def _is_mixed(node: torch.fx.Node) -> bool:
    if node.target not in _NORMS:
        return False
    types = {each.meta["val"].dtype for each in node.all_input_nodes}
    return torch.float32 in types and not types.isdisjoint(_HALF)


def _widen(node: torch.fx.Node) -> None:
    with node.graph.inserting_before(node):
        for source in node.all_input_nodes:
            if source.meta["val"].dtype in _HALF:
                node.replace_input_with(source, _cast(node, source, torch.float32))
    given: Any = node.meta["val"]
    for user in list(node.users):
        if user.target is not operator.getitem:
            continue
        value = given[user.args[1]]
        if isinstance(value, torch.Tensor) and value.dtype in _HALF:
            _narrow(user, value.dtype)
    node.meta["val"] = type(given)(_wide(each) for each in given)


def _narrow(result: torch.fx.Node, dtype: torch.dtype) -> None:
    """Let users of a result read it in the type that it was captured in."""
    users = list(result.users)
    result.meta["val"] = _wide(result.meta["val"])
    with result.graph.inserting_after(result):
        cast = _cast(result, result, dtype)
    for user in users:
        user.replace_input_with(result, cast)


def _cast(like: torch.fx.Node, source: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
    node = like.graph.call_function(aten._to_copy.default, (source,), {"dtype": dtype})
    node.meta = {**like.meta, "val": _of_type(source.meta["val"], dtype)}
    return node


def _wide(value: Any) -> Any:
    is_half = isinstance(value, torch.Tensor) and value.dtype in _HALF
    return _of_type(value, torch.float32) if is_half else value


def _of_type(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor without data, laid out as another one."""
    with value.fake_mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=dtype, device=value.device)

"""Finds out whether gradients are switched off where a node is."""

from __future__ import annotations

import libcst as cst

from abele.port.source import Source

_NO_GRAD = ("torch.no_grad", "torch.inference_mode")


def is_without(source: Source, node: cst.CSTNode) -> bool:
    """Whether gradients are off where a node is."""
    for each in source.above(node):
        expressions: list[cst.BaseExpression] = []
        if isinstance(each, cst.With):
            expressions = [item.item for item in each.items]
        elif isinstance(each, cst.FunctionDef):
            expressions = [decorator.decorator for decorator in each.decorators]
        for expression in expressions:
            func = expression.func if isinstance(expression, cst.Call) else expression
            if source.imported(func) in _NO_GRAD:
                return True
    return False

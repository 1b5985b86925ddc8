"""The two gradients of a convolution as two operators, on GPUs.

    dx, dw, _ = convolution_backward(g, x, w, ..., [True, True, False])
->  dx, _, _ = convolution_backward(g, x, w, ..., [True, False, False])
    _, dw, _ = convolution_backward(g, x, w, ..., [False, True, False])

Libraries compute them by two kernels anyway. Apart, one may be a kernel of ours.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from abele.passes._edit import rewritten_where
from abele.program import Program

aten = torch.ops.aten


def gpu_gradients(program: Program, are_apart: Callable[[torch.fx.Node], bool]) -> Program:
    """Take gradients apart, also in bodies of loops.

    Args:
        program: whose biases are summed apart (``gpu_biases``).
        are_apart: of a ``convolution_backward`` that computes both, whether it should be two.
    """

    def matches(node: torch.fx.Node) -> bool:
        if node.target is not aten.convolution_backward.default:
            return False
        mask: Any = node.args[-1]
        return mask[0] and mask[1] and are_apart(node)

    return rewritten_where(program, matches, _take_apart)


def _take_apart(node: torch.fx.Node) -> None:
    target: Any = node.target
    *rest, mask = tuple[Any, ...](node.args)
    of_image, of_weight, of_bias = node.meta["val"]
    with node.graph.inserting_before(node):
        first = node.graph.call_function(target, (*rest, [True, False, False]))
    first.meta = {**node.meta, "val": (of_image, None, None)}
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == 0:
            user.args = (first, 0)
    node.args = (*rest, [False, *mask[1:]])
    node.meta["val"] = (None, of_weight, of_bias)

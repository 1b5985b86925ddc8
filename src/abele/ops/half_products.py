"""Products and convolutions of float16 tensors on the host: in float32, rounded once.

Torch computes them 5 to 60 times as slowly as those of float32 on processors without half
arithmetic; on those with it, gradients of convolution weights are as slow. The same bits follow on
all processors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from abele.containers import is_sequence

aten = torch.ops.aten

#: Products and convolutions.
OPERATORS = frozenset(
    (
        *(aten.convolution.default, aten.convolution_backward.default, aten.mm.default),
        *(aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.mv.default),
        *(aten.addmv.default, aten.dot.default),
    )
)


def is_half_product(node: torch.fx.Node) -> bool:
    """Return whether a node is a product or convolution of float16 tensors on the host."""
    if node.target not in OPERATORS:
        return False
    value = node.all_input_nodes[0].meta["val"]
    return value.dtype is torch.float16 and value.device.type == "cpu"


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a product or convolution whose float16 arguments and results are float32 inside."""

    def product(*args: Any, **kwargs: Any) -> Any:
        wide = [each.float() if _is_half(each) else each for each in args]
        if not any(map(_is_half, args)):  # interpreted in another type
            return function(*args, **kwargs)
        results = function(*wide, **kwargs)
        if is_sequence(results):
            return tuple(each if each is None else each.half() for each in results)
        return cast("torch.Tensor", results).half()

    return product


def _is_half(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float16

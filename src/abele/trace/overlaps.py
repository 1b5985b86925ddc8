"""Writes into tensors whose elements share memory, such as those of expand.

    x.expand(3, 4).fill_(2)   ->   x.expand(3, 4)[:1, :1].fill_(2)

Setting all elements to one value is the same as setting each memory location once; torch refuses
other writes. Functionalization, by contrast, treats each element as separate.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from abele._torch import OpOverload

aten = torch.ops.aten

_SETS_ALL = {aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default}


def each_once(
    function: OpOverload, tensor: torch.Tensor, call: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """Return a view of what an operator is about to set to one value, with each element in it once.

    Args:
        function: the operator; for all but those that set every element, nothing changes.
        tensor: its first argument.
        call: traces an operator.
    """
    if function not in _SETS_ALL:
        return tensor
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride == 0:
            tensor = call(aten.slice.Tensor, (tensor, dim, 0, 1), {})
    return tensor

"""Writes into tensors whose elements share memory, such as those of expand.

    x.expand(3, 4).fill_(2)   ->   x.expand(3, 4)[:1, :1].fill_(2)

Setting all elements to one value is the same as setting each memory location once; torch refuses
other writes, as are ``add_`` and ``copy_``. Functionalization, by contrast, treats each element as
separate.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from abele._torch import OpOverload
from abele.errors import CaptureError
from abele.warn import user_line

aten = torch.ops.aten

_SETS_ALL = {aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default}


def each_once(
    function: OpOverload, tensor: torch.Tensor, call: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """Return a view of what an operator is about to write, with each element in it once.

    Args:
        function: the operator; for all but those that set every element, nothing changes.
        tensor: its first argument.
        call: traces an operator.

    Raises:
        CaptureError: the operator writes each element, and some share their memory.
    """
    if function not in _SETS_ALL:
        if _writes_each(function) and _is_expanded(tensor):
            raise CaptureError(refusal(f", at {user_line()}"))
        return tensor
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride == 0:
            tensor = call(aten.slice.Tensor, (tensor, dim, 0, 1), {})
    return tensor


def refusal(place: str) -> str:
    """Why such a write is refused.

    Args:
        place: says where it is, after a comma; empty if that is not known.
    """
    return (
        f"forward writes into elements that share their memory{place}, as those of expand and "
        "unfold do; which value remains is not defined. Write into a clone."
    )


def _writes_each(function: OpOverload) -> bool:
    """Whether torch writes element by element; ``masked_fill_`` and ``index_put_`` it allows."""
    return torch.Tag.pointwise in function.tags or function is aten.copy_.default


def _is_expanded(tensor: torch.Tensor) -> bool:
    return any(
        size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )

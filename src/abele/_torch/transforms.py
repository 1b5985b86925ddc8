"""Whether somebody follows what is done with a tensor in another way than autograd."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import torch


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether ``torch.func`` or a forward derivative sees what is done with a tensor."""
    functions: Any = getattr(torch._C, "_functorch")  # noqa: B009 - its stubs do not have it
    forward_ad: Any = torch.autograd.forward_ad
    if functions.is_functorch_wrapped_tensor(tensor):
        return True
    return forward_ad.unpack_dual(tensor).tangent is not None

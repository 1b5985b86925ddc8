"""Programs compute with dense tensors; what another kind is called, and what to do with it."""

from __future__ import annotations

import torch

INSTEAD = (
    "Use a dense tensor (to_dense(), to_padded_tensor(), dequantize()), or indices and values as "
    "two tensors."
)


def other_kind(tensor: torch.Tensor) -> str | None:
    """Describe a tensor that is not dense, such as ``of layout torch.sparse_coo``; else None."""
    if tensor.is_nested:
        return "nested"
    if tensor.layout is not torch.strided:
        return f"of layout {tensor.layout}"
    return f"quantized ({tensor.dtype})" if tensor.is_quantized else None

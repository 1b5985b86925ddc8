"""Max pooling over windows that lie inside the image.

Computes ``aten.max_pool2d_with_indices`` without padding and dilation. Importing this module
registers it.
"""

from __future__ import annotations

import torch

_FORWARD = "abele::max_pool"

torch.library.define(
    _FORWARD,
    "(Tensor x, int[2] kernel, int[2] stride) -> (Tensor, Tensor)",
    tags=(torch.Tag.needs_contiguous_strides, torch.Tag.pt2_compliant_tag),
)


@torch.library.impl(_FORWARD, "CompositeExplicitAutograd")
def _forward(x, kernel, stride):
    values, indices = torch.ops.aten.max_pool2d_with_indices(x, kernel, stride)
    return values.contiguous(), indices.contiguous()


@torch.library.register_fake(_FORWARD)
def _forward_shape(x, kernel, stride):
    height, width = ((x.shape[2 + i] - kernel[i]) // stride[i] + 1 for i in (0, 1))
    shape = (*x.shape[:2], height, width)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


forward = torch.ops.abele.max_pool.default

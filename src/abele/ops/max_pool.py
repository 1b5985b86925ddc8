"""Max pooling over windows of 2x2 that overlap neither each other nor a border.

Computes ``aten.max_pool2d_with_indices`` with these settings. Importing this module registers it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from abele.ops._register import shapes_of

_FORWARD = "abele::max_pool"

torch.library.define(
    _FORWARD,
    "(Tensor x) -> (Tensor, Tensor)",
    tags=(torch.Tag.needs_contiguous_strides, torch.Tag.pt2_compliant_tag),
)


@torch.library.impl(_FORWARD, "CompositeExplicitAutograd")
def _forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = torch.ops.aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
    return values.contiguous(), indices.contiguous()


@shapes_of(_FORWARD)
def _forward_shape(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


forward = torch.ops.abele.max_pool.default


def is_two_by_two(
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> bool:
    """Return whether ``aten.max_pool2d_with_indices`` is one that our kernels compute.

    They do it for batches of float32 images, in windows of 2x2 that overlap neither each other nor
    a border.

    Args:
        x: ``[N, C, H, W]``, may be without data.
        kernel: of each dimension, as the operator takes it; likewise the others.
        stride: the kernel's if empty.
        padding: at each border.
        dilation: between the pixels of a window.
        ceil_mode: whether windows may reach over the border.
    """
    return (
        x.dtype is torch.float32
        and x.dim() == 4
        and set(kernel) == {2}
        and set(stride) <= {2}
        and set(padding) == {0}
        and set(dilation) == {1}
        and not (ceil_mode and (x.shape[2] % 2 or x.shape[3] % 2))
    )

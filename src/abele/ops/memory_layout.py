"""An operator that converts the memory format of an image to channels-last or contiguous.

Importing this module registers the operator.
"""

from __future__ import annotations

import torch

from abele.ops._register import implements, shapes_of

_NAME = "abele::in_layout"


# The result may be its argument, or a view of it.
@implements(_NAME, "(Tensor(a) x, bool channels_last) -> Tensor(a)")
def _in_layout(x: torch.Tensor, channels_last: bool) -> torch.Tensor:
    if not channels_last:
        return x.contiguous()
    if x.shape[1] == 1 and x.is_contiguous():
        # Both at once; these strides make operators choose this one.
        pixels = x.shape[2] * x.shape[3]
        return x.as_strided(x.shape, (pixels, 1, x.shape[3], 1))
    return x.contiguous(memory_format=torch.channels_last)


@shapes_of(_NAME)
def _shape(x: torch.Tensor, channels_last: bool) -> torch.Tensor:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return x.contiguous(memory_format=layout)


in_layout = torch.ops.abele.in_layout.default

"""Two-dimensional convolutions with few channels, as one forward and one backward operator.

They compute what ``aten.convolution`` and ``aten.convolution_backward`` compute without dilation,
groups and transposition. Importing this module registers them.
"""

from __future__ import annotations

from typing import Any

import torch

from abele.ops._register import implements, shapes_of

aten = torch.ops.aten

_FORWARD = "abele::few_channel_conv"
_BACKWARD = "abele::few_channel_conv_backward"


@implements(
    _FORWARD, "(Tensor x, Tensor weight, Tensor? bias, int[2] stride, int[2] padding) -> Tensor"
)
def _forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
) -> torch.Tensor:
    result = aten.convolution(x, weight, bias, stride, padding, [1, 1], False, [0, 0], 1)
    return result.contiguous()


@shapes_of(_FORWARD)
def _forward_shape(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
) -> torch.Tensor:
    height, width = (
        (x.shape[2 + i] + 2 * padding[i] - weight.shape[2 + i]) // stride[i] + 1 for i in (0, 1)
    )
    return x.new_empty((x.shape[0], weight.shape[0], height, width))


@implements(
    _BACKWARD,
    "(Tensor grad, Tensor x, Tensor weight, int[2] stride, int[2] padding, bool[3] output_mask)"
    " -> (Tensor, Tensor, Tensor)",
)
def _backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    output_mask: list[bool],
) -> tuple[torch.Tensor | None, ...]:
    sizes = [weight.shape[0]]
    gradients = aten.convolution_backward(
        grad, x, weight, sizes, stride, padding, [1, 1], False, [0, 0], 1, output_mask
    )
    return tuple(each if each is None else each.contiguous() for each in gradients)


@shapes_of(_BACKWARD)
def _backward_shapes(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    *settings: list[Any],
) -> tuple[torch.Tensor | None, ...]:
    shapes = (x.shape, weight.shape, weight.shape[:1])
    return tuple(
        grad.new_empty(shape) if needed else None
        for shape, needed in zip(shapes, settings[-1], strict=True)
    )


forward = torch.ops.abele.few_channel_conv.default
backward = torch.ops.abele.few_channel_conv_backward.default

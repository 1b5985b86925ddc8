"""A convolution of inference whose weight, bias and batch norm are constants of the program.

    y = activation(batch_norm(convolution(x, weight, bias)) + added)

The norm's scale is part of the weight, its shift part of the bias: ``folded`` computes both, once
for many calls where a lowering can. Importing this module registers the operator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from abele.ops._register import implements, shapes_of

Tensor = torch.Tensor
_NAME = "abele::constant_convolution"


def _none(y: Tensor) -> Tensor:
    return y


#: In-place activations by name; further arguments are the operator's ``scalars``.
ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "none": _none,
    "relu": torch.relu_,
    "leaky_relu": F.leaky_relu_,
    "hardtanh": F.hardtanh_,
    "swish": functools.partial(F.silu, inplace=True),
    "hardswish": functools.partial(F.hardswish, inplace=True),
}


def folded(
    weight: Tensor, bias: Tensor | None, norm: Sequence[Tensor], eps: float
) -> tuple[Tensor, Tensor | None]:
    """Return the float32 weight and bias of a convolution and the batch norm behind it.

    Args:
        weight: ``[out, in / groups, height, width]``.
        bias: ``[out]``, or None.
        norm: weight, bias, mean and variance, ``[out]`` each; empty without a norm.
        eps: added to the variance.
    """
    weight, bias = weight.float(), None if bias is None else bias.float()
    if not norm:
        return weight, bias
    scale_of, shift_of, mean, var = (each.float() for each in norm)
    scale = scale_of * (var + eps).rsqrt()
    shift = shift_of - (mean if bias is None else mean - bias) * scale
    return weight * scale.view(-1, 1, 1, 1), shift


@implements(
    _NAME,
    "(Tensor x, Tensor weight, Tensor? bias, Tensor[] norm, float eps, Tensor? added,"
    " int[] stride, int[] padding, int[] dilation, int groups, str activation, float[] scalars)"
    " -> Tensor",
)
def _constant_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Sequence[Tensor],
    eps: float,
    added: Tensor | None,
    *settings: Any,
) -> Tensor:
    *places, activation, scalars = settings
    y = F.conv2d(x.float(), *folded(weight, bias, norm, eps), *places).to(x.dtype)
    return ACTIVATIONS[activation](y if added is None else y.add_(added), *scalars)


@shapes_of(_NAME)
def _shape(x: Tensor, weight: Tensor, *others: Any) -> Tensor:
    return F.conv2d(x, weight, None, *others[4:8])


operator = torch.ops.abele.constant_convolution.default

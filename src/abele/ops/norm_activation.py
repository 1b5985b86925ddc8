"""Training-mode batch normalisation fused with its activation, forward and backward.

    normalised = (x - mean) / sqrt(var + eps)
    y = leaky(normalised * weight + bias)

Forward returns y, what backward needs of it, statistics and the new running statistics. A kernel
may keep y alone, from which backward recovers ``normalised``; this implementation keeps x.

The sum of a residual network stands between the two, ``y = leaky(normalised * weight + bias +
added)``. Its backward gets x and y, and the gradient of y in one or two parts.

Images and parameters of 16 bits are computed in float32, and results rounded to their types.
Importing this module registers the operators.
"""

from __future__ import annotations

from typing import Any

import torch

from abele.ops._register import implements, results_like, shapes_of

_FORWARD = "abele::norm_activation"
_BACKWARD = "abele::norm_activation_backward"
_SAVED = "abele::saved_by_norm"
_EVALUATION = "abele::scale_shift_activation"
_OF_SUM = "abele::norm_sum_activation"
_OF_SUM_BACKWARD = "abele::norm_sum_activation_backward"

# Rows of ``statistics``, [3, channels]; in the third, a kernel notes what it kept.
MEAN, INVERSE_STD = 0, 1


def _wide(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return tensors in float32, or in float64 as they are."""
    return [each.to(torch.promote_types(each.dtype, torch.float32)) for each in tensors]


def _along(channels: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return channels.reshape(-1, *[1] * (x.dim() - 2))


def _leaky(x: torch.Tensor, slope: float) -> torch.Tensor:
    return torch.where(x > 0, x, x * slope)


def _normalised(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """Return the batch norm before the activation, statistics, and new running statistics."""
    of_mean, of_var = mean.dtype, var.dtype
    x, weight, bias, mean, var = _wide(x, weight, bias, mean, var)
    dims = [dim for dim in range(x.dim()) if dim != 1]
    rows = x.numel() // x.shape[1]
    average, variance = x.mean(dims), x.var(dims, correction=0)
    inverse_std = (variance + eps).rsqrt()
    statistics = torch.stack((average, inverse_std, torch.zeros_like(average)))
    y = (x - _along(average, x)) * _along(inverse_std * weight, x) + _along(bias, x)
    new_mean = mean * (1 - momentum) + average * momentum
    new_var = var * (1 - momentum) + variance * (rows / (rows - 1)) * momentum
    return y, statistics, new_mean.to(of_mean), new_var.to(of_var)


@implements(
    _FORWARD,
    "(Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor var,"
    " float momentum, float eps, float slope) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _forward(x: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...]:
    *norm, slope = others
    y, *rest = _normalised(x, *norm)
    return _leaky(y, slope).to(x.dtype), x.clone(), *rest


@shapes_of(_FORWARD)
def _forward_shapes(x: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...]:
    y, *statistics = _of_sum_shapes(x, *others)
    return y, torch.empty_like(x), *statistics


@implements(
    _BACKWARD,
    "(Tensor grad, Tensor kept, Tensor weight, Tensor bias, Tensor statistics, float slope)"
    " -> (Tensor, Tensor, Tensor)",
)
def _backward(
    grad: torch.Tensor,
    kept: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    statistics: torch.Tensor,
    slope: float,
) -> tuple[torch.Tensor, ...]:
    types = kept.dtype, weight.dtype, bias.dtype
    grad, kept, weight, bias = _wide(grad, kept, weight, bias)
    inverse_std = _along(statistics[INVERSE_STD], grad)
    normalised = (kept - _along(statistics[MEAN], grad)) * inverse_std
    before = normalised * _along(weight, grad) + _along(bias, grad)
    grad = torch.where(before > 0, grad, grad * slope)
    gradients = _gradients(grad, normalised, inverse_std, weight)
    return tuple(each.to(dtype) for each, dtype in zip(gradients, types, strict=True))


def _gradients(
    grad: torch.Tensor, normalised: torch.Tensor, inverse_std: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return a batch norm's gradients of x, weight and bias."""
    dims = [dim for dim in range(grad.dim()) if dim != 1]
    grad_bias, grad_weight = grad.sum(dims), (grad * normalised).sum(dims)
    rows = grad.numel() // grad.shape[1]
    centred = grad - _along(grad_bias / rows, grad) - normalised * _along(grad_weight / rows, grad)
    grad_x = centred * inverse_std * _along(weight, grad)
    return grad_x, grad_weight, grad_bias


results_like(_BACKWARD, 1, 2, 3)


@implements(_SAVED, "(Tensor kept, Tensor y, Tensor copy) -> Tensor")
def _saved(kept: torch.Tensor, y: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    """Return what a norm saves for backward in the type of ``copy``, which is one of y."""
    return copy if kept.data_ptr() == y.data_ptr() else kept.to(copy.dtype)


results_like(_SAVED, 2)


@implements(_EVALUATION, "(Tensor x, Tensor scale, Tensor shift, float slope) -> Tensor")
def _evaluation(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, slope: float
) -> torch.Tensor:
    wide, scale, shift = _wide(x, scale, shift)
    return _leaky(wide * _along(scale, x) + _along(shift, x), slope).to(x.dtype)


results_like(_EVALUATION, 0)


@implements(
    _OF_SUM,
    "(Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor var, Tensor added,"
    " float momentum, float eps, float slope) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _of_sum(x: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...]:
    *norm, added, momentum, eps, slope = others
    y, *rest = _normalised(x, *norm, momentum=momentum, eps=eps)
    return _leaky(y + added, slope).to(x.dtype), *rest


@shapes_of(_OF_SUM)
def _of_sum_shapes(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    *others: Any,
) -> tuple[torch.Tensor, ...]:
    statistics = x.new_empty((3, x.shape[1]), dtype=torch.promote_types(x.dtype, torch.float32))
    return torch.empty_like(x), statistics, torch.empty_like(mean), torch.empty_like(var)


@implements(
    _OF_SUM_BACKWARD,
    "(Tensor grad, Tensor? more, Tensor y, Tensor x, Tensor weight, Tensor statistics,"
    " float slope) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _of_sum_backward(
    grad: torch.Tensor,
    more: torch.Tensor | None,
    y: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    statistics: torch.Tensor,
    slope: float,
) -> tuple[torch.Tensor, ...]:
    images, of_weight = x.dtype, weight.dtype
    grad, y, x, weight = _wide(grad, y, x, weight)
    grad = grad if more is None else grad + more
    masked = torch.where(y > 0, grad, grad * slope)
    inverse_std = _along(statistics[INVERSE_STD], x)
    normalised = (x - _along(statistics[MEAN], x)) * inverse_std
    grad_x, *rest = _gradients(masked, normalised, inverse_std, weight)
    return masked.to(images), grad_x.to(images), *(each.to(of_weight) for each in rest)


results_like(_OF_SUM_BACKWARD, 3, 3, 4, 4)

forward = torch.ops.abele.norm_activation.default
backward = torch.ops.abele.norm_activation_backward.default
saved = torch.ops.abele.saved_by_norm.default
evaluation = torch.ops.abele.scale_shift_activation.default
of_sum = torch.ops.abele.norm_sum_activation.default
of_sum_backward = torch.ops.abele.norm_sum_activation_backward.default

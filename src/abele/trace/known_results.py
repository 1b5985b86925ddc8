"""Results of operators on tensors without data, stated where torch would decompose the operator.

    batch_norm(x [8, 16, 4, 4])   ->   x's layout, [16], [16]

Torch takes 2 to 60 ms to find that out, and a network has such an operator in many sizes. Stated
are plain cases only: float32 or float64 on the host, images contiguous or with channels last, for
upsampling also channels that a split has left of such images. Views, for which torch takes 0.1 to
1 ms, are asked of the kernel itself. Whatever else there is, torch is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from abele import _torch

aten = torch.ops.aten

_Results = tuple[torch.Tensor, ...] | torch.Tensor | None
_TYPES = (torch.float32, torch.float64)
_ORDERS = (torch.contiguous_format, torch.channels_last)


def results_of(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Return an operator's results on tensors without data, of the mode that is open.

    Args:
        function: the operator; writes to its arguments do not happen.
        args: its arguments.
        kwargs: further ones.
    """
    state = _KNOWN.get(function)
    if state is not None and not kwargs:
        with _torch.without_torch_function_modes():
            results = state(*args)
        if results is not None:
            return results
    return function(*args, **(kwargs or {}))


def are_stated(function: Callable[..., Any]) -> bool:
    """Whether plain cases of an operator are stated here."""
    return function in _KNOWN


def _order(*tensors: torch.Tensor) -> torch.memory_format | None:
    """Return the order in which all lie in memory; None if there are several, or none of the two.

    With one channel or one pixel both orders are the same, and kernels differ in which they choose.
    """
    first = tensors[0]
    if first.dim() > 4 or not first.numel():
        return None
    for each in tensors:
        if each.dtype not in _TYPES or each.device.type != "cpu":
            return None
        if (each.dtype, each.shape, each.stride()) != (first.dtype, first.shape, first.stride()):
            return None
    orders = [order for order in _ORDERS[: 1 + (first.dim() == 4)] if _has_order(first, order)]
    return orders[0] if len(orders) == 1 else None


def _order_of_images(x: torch.Tensor) -> torch.memory_format | None:
    """Return the order of each image where other channels may lie between images."""
    size = x.shape[1:].numel()
    if x.device.type != "cpu" or x.stride(0) <= size or min(x.shape[1:]) < 2:
        return _order(x)
    return _order(torch.empty_strided((1, *x.shape[1:]), (size, *x.stride()[1:]), dtype=x.dtype))


def _has_order(tensor: torch.Tensor, order: torch.memory_format) -> bool:
    # A dimension of size one may have any stride, which results need not share.
    plain = torch.empty(tensor.shape, device="meta", memory_format=order)
    return tensor.is_contiguous(memory_format=order) and tensor.stride() == plain.stride()


def _are_vectors(like: torch.Tensor, *tensors: torch.Tensor | None) -> bool:
    """Whether all that are there have an element for each channel, and the type of the images."""
    return all(
        each is None
        or (each.dtype, each.shape, each.stride()) == (like.dtype, like.shape[1:2], (1,))
        for each in tensors
    )


def _batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    var: torch.Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...] | None:
    del momentum, eps
    order = _order(x)
    if order is None or not training or not _are_vectors(x, weight, bias, mean, var):
        return None
    return torch.empty_like(x, memory_format=order), torch.empty_like(mean), torch.empty_like(mean)


def _pure_batch_norm(*args: Any) -> tuple[torch.Tensor, ...] | None:
    results = _batch_norm(*args)
    if results is None:
        return None
    return *results, *map(torch.empty_like, args[3:5])


def _batch_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    saved_mean: torch.Tensor | None,
    saved_deviation: torch.Tensor | None,
    training: bool,
    eps: float,
    wanted: Sequence[bool],
) -> tuple[torch.Tensor, ...] | None:
    del eps
    order, vectors = _order(x, gradient), (weight, mean, var, saved_mean, saved_deviation)
    if order is None or not training or not all(wanted) or weight is None:
        return None
    if not _are_vectors(x, *vectors):
        return None
    return (
        torch.empty_like(x, memory_format=order),
        torch.empty_like(weight),
        torch.empty_like(weight),
    )


def _upsampled(x: torch.Tensor, size: Sequence[int], *settings: Any) -> torch.Tensor | None:
    del settings
    order = _order_of_images(x) if x.dim() == 4 else None
    if order is None or len(size) != 2 or min(size) < 1:
        return None
    shape = (*x.shape[:2], *size)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=order)


def _like_both(gradient: torch.Tensor, x: torch.Tensor, *settings: Any) -> torch.Tensor | None:
    del settings
    order = _order(gradient, x)
    return None if order is None else torch.empty_like(x, memory_format=order)


def _view(function: Callable[..., torch.Tensor]) -> Callable[..., _Results]:
    """Return what states the views that an operator makes."""

    def viewed(x: torch.Tensor, *settings: Any) -> torch.Tensor | None:
        if type(x) is not _torch.FakeTensor or x.constant is not None or x.is_complex():
            return None
        try:
            return _torch.viewed(x, function, *settings)
        except (IndexError, RuntimeError):
            return None  # torch says so

    return viewed


_VIEWS = (
    aten.detach.default,
    aten.expand.default,
    aten.permute.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.squeeze.dim,
    aten.t.default,
    aten.transpose.int,
    aten.unsqueeze.default,
    aten.view.default,
)

_KNOWN: dict[Any, Callable[..., _Results]] = {
    aten._native_batch_norm_legit.default: _batch_norm,
    aten._native_batch_norm_legit_functional.default: _pure_batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.upsample_bilinear2d.default: _upsampled,
    aten.leaky_relu_backward.default: _like_both,
    **{view: _view(view) for view in _VIEWS},
}

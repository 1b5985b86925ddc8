"""Layouts of operator results on fake tensors (tensors without data).

    batch_norm(x [8, 16, 4, 4])   ->   the layout of x, [16], [16]

Torch takes 0.1 to 60 ms to compute the layout of a result, and a graph repeats the same calls a
thousand times. Three parts share that work:

- ``key_of_call``: the layouts and arguments that results depend on;
- ``stated_results``: results of batch norms, stated here because torch would decompose them. Stated
  are plain cases: of one floating type on the host, images contiguous or with channels last;
- ``actual``: corrected strides of results that torch lays out differently without data than with.
  A trace relies on strides: it would create a view where the kernel's result needs a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import Any, cast

import torch

from abele import _torch
from abele._torch import OpOverload
from abele.containers import is_sequence
from abele.program import is_getitem, node_argument
from abele.storage.values import bits

aten = torch.ops.aten

OfTensor = Callable[[torch.Tensor], Hashable]

_PLAIN = {
    type(None),
    int,
    bool,
    str,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
}


class UnknownError(Exception):
    """An argument or a result of a type that no cache key of operator calls expresses."""


def layout_of(tensor: torch.Tensor) -> Hashable:
    """Return the dtype and memory layout of a tensor, fake or real, as a cache key.

    Raises:
        UnknownError: it is complex, so that it may be conjugated lazily, or it is not dense.
    """
    if tensor.layout is not torch.strided or tensor.is_complex():
        raise UnknownError
    device = tensor.fake_device if isinstance(tensor, _torch.FakeTensor) else tensor.device
    return tensor.dtype, device, tensor.shape, tensor.stride(), tensor.storage_offset()


def key_of_call(
    function: Hashable,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    of_tensor: OfTensor = layout_of,
) -> Hashable:
    """Return a cache key of everything that an operator's results can depend on.

    Args:
        function: the operator.
        args: its arguments.
        kwargs: further ones.
        of_tensor: returns a tensor's part of the key; called in the order of the arguments.

    Raises:
        UnknownError: an argument of a kind that no key expresses.
    """
    named = kwargs.items()
    return function, _key(args, of_tensor), *[(name, _key(each, of_tensor)) for name, each in named]


def _key(value: Any, of_tensor: OfTensor) -> Hashable:
    kind = cast("Any", type(value))
    if kind is float or kind in _PLAIN:
        return bits(value)
    if is_sequence(value):
        return kind, *[_key(each, of_tensor) for each in value]
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    raise UnknownError


# -- stated results --------------------------------------------------------------------------------

_Results = tuple[torch.Tensor, ...] | torch.Tensor | None
_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_ORDERS = (torch.contiguous_format, torch.channels_last)


def stated_results(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Return an operator's fake results without running torch's decomposition.

    Args:
        function: the operator; writes to its arguments do not happen.
        args: its arguments.
        kwargs: further ones.
    """
    state = _KNOWN.get(function)
    with _torch.without_torch_function_modes():  # through which torch's own queries would go
        results = None if state is None or kwargs else state(*args)
        return function(*args, **(kwargs or {})) if results is None else results


def _order(*tensors: torch.Tensor) -> torch.memory_format | None:
    """Return the memory format that all tensors share; None if they share no single format.

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


def _has_order(tensor: torch.Tensor, order: torch.memory_format) -> bool:
    # A dimension of size one may have any stride, which results need not share.
    plain = torch.empty(tensor.shape, device="meta", memory_format=order)
    return tensor.is_contiguous(memory_format=order) and tensor.stride() == plain.stride()


def _are_vectors(like: torch.Tensor, *tensors: torch.Tensor | None) -> bool:
    """Return whether optional vectors have one element per channel and the activations' dtype."""
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
    dtype = torch.promote_types(args[3].dtype, torch.float32)  # running statistics are not rounded
    return *results, *(torch.empty_like(each, dtype=dtype) for each in args[3:5])


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


_KNOWN: dict[Any, Callable[..., _Results]] = {
    aten._native_batch_norm_legit.default: _batch_norm,
    aten._native_batch_norm_legit_functional.default: _pure_batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
}

# -- the strides of kernels ------------------------------------------------------------------------

Like = Callable[..., torch.Tensor]


def _contiguous(argument: int) -> Like:
    return lambda *args: torch.empty_like(args[argument], memory_format=torch.contiguous_format)


def _of_both(first: int, second: int) -> Like:
    """Return a rule that lays out a result as binary elementwise kernels do."""
    return lambda *args: torch.mul(args[first], args[second])


def _of_images(*args: Any) -> torch.Tensor:
    """Return an empty fake tensor, channels-last if the activations are, else contiguous."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    chosen = formats.get(args[0].dim(), torch.contiguous_format)
    if not args[0].is_contiguous(memory_format=chosen):
        chosen = torch.contiguous_format
    return torch.empty_like(args[0], memory_format=chosen)


# By operator, for each corrected result: a function that returns a tensor of its layout.
_LIKE: dict[Callable[..., Any], tuple[Like, ...]] = {
    aten.mse_loss_backward.default: (_contiguous(1),),
    aten.smooth_l1_loss_backward.default: (_contiguous(1),),
    aten.huber_loss_backward.default: (_contiguous(1),),
    aten.elu_backward.default: (_of_both(0, 5),),
    aten.softplus_backward.default: (_of_both(0, 1),),
    aten.hardtanh_backward.default: (_of_both(0, 1),),
    aten.hardswish_backward.default: (_of_both(0, 1),),
    aten.hardsigmoid_backward.default: (_of_both(0, 1),),
    aten._native_batch_norm_legit.default: (_of_images,),
    aten._native_batch_norm_legit_functional.default: (_of_images,),
    aten._native_batch_norm_legit.no_stats: (_of_images,),
    aten.log_sigmoid_forward.default: (_contiguous(0), _contiguous(0)),
}


def actual(function: Callable[..., Any], args: Sequence[Any], result: Any) -> Any:
    """Return an operator's fake results with the strides that its kernel gives them.

    Args:
        function: the operator.
        args: its positional arguments.
        result: what it returned.
    """
    likes = _LIKE.get(function)
    if likes is None or args[0].device.type != "cpu":
        return result
    results = list(result) if is_sequence(result) else [result]
    for index, like in enumerate(likes):
        before, real = results[index], like(*args)
        if before.stride() != real.stride():
            results[index] = real.to(before.dtype)
    return type(result)(results) if is_sequence(result) else results[0]


@contextlib.contextmanager
def correcting() -> Generator[None]:
    """Correct the strides of results in the current trace, in a ``with`` block."""
    with _torch.Interception() as trace:

        def call(
            function: OpOverload,
            args: Sequence[Any],
            kwargs: dict[str, Any],
            run: Callable[..., Any],
        ) -> Any:
            return corrected(trace, function, args, run(function, args, kwargs))

        trace.intercept(call, lambda node: None, stated_results)
        yield


def corrected(
    trace: _torch.Interception, function: OpOverload, args: Sequence[Any], result: Any
) -> Any:
    """Return just-traced results with the strides that the operator's kernel gives them."""
    if function not in _LIKE:
        return result
    with _torch.without_torch_function_modes(), torch.no_grad():
        corrected_result = actual(function, args, result)
    if not is_sequence(corrected_result):
        return _in_trace(trace, result, corrected_result)
    return type(corrected_result)(
        _in_trace(trace, *each) for each in zip(result, corrected_result, strict=True)
    )


def _in_trace(trace: _torch.Interception, before: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    node = None if now is before else trace.node_of(before)
    if node is None:
        return before
    if is_getitem(node):
        call = node_argument(node, 0)
        results = list(call.meta["val"])
        index = node.args[1]
        assert isinstance(index, int), node
        results[index] = now
        call.meta["val"] = type(call.meta["val"])(results)
    proxy = torch.fx.Proxy(node, trace.tracer)
    return _torch.track_tensor_tree(now, proxy, constant=None, tracer=trace.tracer)


class Results:
    """A cache of operator results by key; results are shared and must not be changed."""

    def __init__(self):
        self._results: dict[Hashable, Any] = {}

    def of(
        self,
        target: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return an operator's fake results, cached by the arguments' layouts.

        Args:
            target: the operator; computes on tensors without data, and writes to none.
            args: its arguments, tensors of one fake mode among them.
            kwargs: further ones.
        """
        kwargs = kwargs or {}
        try:
            key = key_of_call(target, args, kwargs)
        except UnknownError:
            return actual(target, args, stated_results(target, args, kwargs))
        if key not in self._results:
            self._results[key] = actual(target, args, stated_results(target, args, kwargs))
        return self._results[key]

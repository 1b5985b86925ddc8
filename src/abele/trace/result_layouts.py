"""Corrected strides of results that torch lays out differently without data than with.

Without data torch decomposes these operators, and the results may get the strides of another
argument. A trace relies on strides: it would create a view where the kernel's result needs a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch

from abele import _torch
from abele._torch import OpOverload
from abele.containers import is_sequence
from abele.program import is_getitem, node_argument
from abele.trace.known_results import results_of

aten = torch.ops.aten

Like = Callable[..., torch.Tensor]


def _contiguous(argument: int) -> Like:
    return lambda *args: torch.empty_like(args[argument], memory_format=torch.contiguous_format)


def _of_both(first: int, second: int) -> Like:
    """Return a tensor laid out as elementwise kernels of two arguments do it."""
    return lambda *args: torch.mul(args[first], args[second])


def _of_images(*args: Any) -> torch.Tensor:
    """Return a tensor in channels-last order if the images are, else contiguous."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    chosen = formats.get(args[0].dim(), torch.contiguous_format)
    if not args[0].is_contiguous(memory_format=chosen):
        chosen = torch.contiguous_format
    return torch.empty_like(args[0], memory_format=chosen)


# By operator: for each result that is concerned, a tensor laid out like it.
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
    """Return the results of an operator on tensors without data, laid out as its kernel does it.

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
    """While open, the results in the trace under way are laid out as kernels do it."""
    with _torch.Interception() as trace:

        def call(
            function: OpOverload,
            args: Sequence[Any],
            kwargs: dict[str, Any],
            run: Callable[..., Any],
        ) -> Any:
            return corrected(trace, function, args, run(function, args, kwargs))

        trace.intercept(call, lambda node: None, results_of)
        yield


def corrected(
    trace: _torch.Interception, function: OpOverload, args: Sequence[Any], result: Any
) -> Any:
    """Return the same as ``actual`` for results that were just traced."""
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

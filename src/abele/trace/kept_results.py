"""Results of operators on tensors without data, kept by this process for later traces.

    relu(x [8, 16]) in one program   ->   how relu(y [8, 16]) lies in memory in the next

They follow from the layouts of an operator's tensors and from its other arguments, and torch takes
0.1 to 50 ms to find them. ``operator_cache`` knows the calls of one trace; a process that trains
and evaluates, or compiles a model again, traces the same calls once more. Kept are operators of
torch that neither write nor return views.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, cast

import torch

from abele import _torch
from abele._torch import OpOverload
from abele.containers import is_sequence
from abele.trace import known_results
from abele.trace.layouts import UnknownError, key_of_call, layout_of

#: How many calls are kept; then all are forgotten. A large network has some hundred.
MOST = 20_000

_OF_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

_kept: dict[Hashable, Any] = {}
_keeps: dict[Callable[..., Any], bool] = {}


@dataclasses.dataclass(frozen=True)
class _Layout:
    """A tensor in memory of its own."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def results_of(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Return what ``known_results.results_of`` does, perhaps as an earlier trace has found it.

    Args:
        function: the operator; writes to its arguments do not happen.
        args: its arguments.
        kwargs: further ones.
    """
    if function not in _keeps:
        _keeps[function] = _may_be_kept(function)
    if not _keeps[function] or torch.is_inference_mode_enabled():
        return known_results.results_of(function, args, kwargs)
    tensors: list[_torch.FakeTensor] = []
    with _torch.without_torch_function_modes():
        key = _key(function, args, kwargs or {}, tensors)
    if key is None:
        return known_results.results_of(function, args, kwargs)
    if key in _kept:
        with _torch.without_torch_function_modes():
            return _made(_kept[key], tensors[0].fake_mode)
    result = known_results.results_of(function, args, kwargs)
    try:
        with _torch.without_torch_function_modes():
            layouts = _layouts(result, {_torch.memory_of(each) for each in tensors})
    except UnknownError:
        return result
    if len(_kept) >= MOST:
        _kept.clear()
    _kept[key] = layouts
    return result


def _may_be_kept(function: Any) -> bool:
    if not isinstance(function, OpOverload) or function.namespace != "aten":
        return False
    operator = cast("Any", function)
    schema = _torch.schema_of(operator)
    shares = schema.is_mutable or any(each.alias_info is not None for each in schema.returns)
    stated = known_results.are_stated(operator)
    return not (shares or stated or _OF_VALUES.intersection(operator.tags))


def _key(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: list[_torch.FakeTensor],
) -> Hashable | None:
    """Return what results depend on, and collect the tensors; None if no key says it."""

    def of_tensor(tensor: torch.Tensor) -> Hashable:
        if type(tensor) is not _torch.FakeTensor or tensor.constant is not None:
            raise UnknownError
        tensors.append(tensor)
        return layout_of(tensor, place=False), tensor.requires_grad

    try:
        key = key_of_call(function, args, kwargs, of_tensor)
    except UnknownError:
        return None
    return (key, *_state()) if tensors else None  # else none says which mode makes the results


def _state() -> tuple[torch.dtype, bool, bool, bool]:
    """Return what else an operator may look at."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    grad, onednn = torch.is_grad_enabled(), bool(torch.backends.mkldnn.enabled)
    return torch.get_default_dtype(), grad, deterministic, onednn


def _layouts(result: Any, memory: set[int]) -> Any:
    """Return a ``_Layout`` for each tensor of a result.

    Args:
        result: of an operator.
        memory: of the arguments; that of the result is added.

    Raises:
        UnknownError: a tensor is not in memory of its own, or of another kind than the arguments.
    """
    if result is None:
        return None
    if is_sequence(result):
        return type(result)(_layouts(each, memory) for each in result)
    if type(result) is not _torch.FakeTensor or result.constant is not None:
        raise UnknownError
    layout_of(result)
    layout = _Layout(result.shape, result.stride(), result.dtype, result.fake_device)
    own = _torch.memory_of(result) not in memory and not result.storage_offset()
    like = _torch.laid_out_like(result, result.fake_mode)
    if not own or like.untyped_storage().nbytes() != result.untyped_storage().nbytes():
        raise UnknownError
    memory.add(_torch.memory_of(result))
    return layout


def _made(layouts: Any, mode: _torch.FakeTensorMode) -> Any:
    if layouts is None:
        return None
    if is_sequence(layouts):
        return type(layouts)(_made(each, mode) for each in layouts)
    each: _Layout = layouts
    return _torch.laid_out(each.shape, each.stride, each.dtype, each.device, mode)

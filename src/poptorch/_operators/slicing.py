"""Slices whose position is a tensor's value: functions, and Python's own notation in forward."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from abele.capture.replacements import offsets
from poptorch._error import error

_INDEX_TYPES = (torch.int16, torch.int32, torch.int64)


def dynamic_slice(
    tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int
) -> torch.Tensor:
    """Return the elements from ``start`` to ``start + size`` along a dimension, every ``step``-th.

    A start from which the slice would leave the tensor is moved to the nearest one from which it
    does not, so that negative starts mean 0. Gradients reach ``tensor``.

    Args:
        tensor: any shape but 0-d.
        dim: along which; negative ones count from the end.
        start: one int16, int32 or int64 element; its value may differ at every call.
        size: how much of the dimension the slice spans.
        step: distance of its elements.

    Returns:
        A new tensor with ``ceil(size / step)`` elements along ``dim``.

    Raises:
        poptorch.Error: an argument of another type, or a size or dimension the tensor has not.

    Differs from the original: what a start out of range reads is defined.
    """
    name = "dynamic_slice"
    index = _index(name, tensor, dim, start, size, step)
    return tensor.index_select(dim, index)


def dynamic_update(
    input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int
) -> torch.Tensor:
    """Return a copy of ``input`` with elements ``start`` to ``start + size`` from ``src``.

    Starts out of range move as for ``dynamic_slice``. Gradients reach ``input`` and ``src``.

    Args:
        input: any shape but 0-d.
        src: of the same dtype and rank; ``size`` elements along ``dim``, else like ``input``.
        dim: along which; negative ones count from the end.
        start: one int16, int32 or int64 element; its value may differ at every call.
        size: how much of the dimension is replaced.

    Raises:
        poptorch.Error: an argument of another type, or tensors that do not fit.

    Differs from the original: what a start out of range writes is defined.
    """
    name = "dynamic_update"
    index = _index(name, input, dim, start, size, 1)
    _need_tensor(name, "src", src)
    if src.dtype != input.dtype:
        raise error(
            f"poptorch.{name}() needs input and src of the same dtype, found input of "
            f"{input.dtype} and src of {src.dtype}."
        )
    if src.dim() != input.dim():
        raise error(
            f"poptorch.{name}() needs input and src of the same rank, found input of rank "
            f"{input.dim()} and src of rank {src.dim()}."
        )
    expected_shape = list(input.shape)
    expected_shape[dim] = size
    if list(src.shape) != expected_shape:
        raise error(
            f"poptorch.{name}() with size {size} on dimension {dim} of input {list(input.shape)} "
            f"needs src of shape {expected_shape}, found {list(src.shape)}."
        )
    return input.index_copy(dim, index, src)


def _index(
    name: str, tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int
) -> torch.Tensor:
    _need_tensor(name, "the tensor to slice" if name == "dynamic_slice" else "input", tensor)
    _need_tensor(name, "start", start)
    for label, value in (("dim", dim), ("size", size), ("step", step)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise error(f"poptorch.{name}() needs {label} as an int, found {type(value).__name__}.")
    if start.dtype not in _INDEX_TYPES or start.numel() != 1:
        raise error(
            f"poptorch.{name}() needs start as one element of int16, int32 or int64, found "
            f"{list(start.shape)} of {start.dtype}."
        )
    rank = tensor.dim()
    if not -rank <= dim < rank:
        raise error(f"poptorch.{name}() on dimension {dim} of a tensor of rank {rank}.")
    if not 1 <= size <= tensor.shape[dim] or step < 1:
        raise error(
            f"poptorch.{name}() needs a size from 1 to {tensor.shape[dim]}, the length of "
            f"dimension {dim}, and a step of at least 1, found size {size} and step {step}."
        )
    return _range(start, tensor.shape[dim], size, step)


def _need_tensor(name: str, label: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise error(f"poptorch.{name}() needs {label} as a tensor, found {type(value).__name__}.")


def _range(start: torch.Tensor, length: int, size: int, step: int) -> torch.Tensor:
    first = start.reshape(()).to(torch.int64).clamp(0, length - size)
    return first + torch.arange(0, size, step, device=start.device)


class TensorSlices(TorchFunctionMode):
    """While open, ``x[i]`` and ``x[i : i + 2]`` work with a tensor ``i`` that has no value yet.

    The ends of a slice have to differ by a constant that the traced operations show. Everything
    else is left to torch, which says that it needs the value.
    """

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None):
        """Call ``func``, with positions instead of numbers and slices that depend on a tensor."""
        if func is torch.Tensor.__getitem__ or func is torch.Tensor.__setitem__:
            positions = _positions(args[0], args[1])
            if positions is not None:
                return _at(func, args[0], *positions, *args[2:])
        return func(*args, **(kwargs or {}))


def _at(
    func: Callable, tensor: torch.Tensor, index: tuple, dropped_dim: int | None, *assigned: Any
) -> torch.Tensor | None:
    if dropped_dim is None:
        return func(tensor, index, *assigned)
    if not assigned:
        return tensor[index].squeeze(dropped_dim)
    value = torch.as_tensor(assigned[0], dtype=tensor.dtype, device=tensor.device)
    shape = tensor[index].squeeze(dropped_dim).shape
    return func(tensor, index, value.expand(shape).unsqueeze(dropped_dim))


def _positions(tensor: torch.Tensor, index: Any) -> tuple[tuple, int | None] | None:
    """Return the index with a vector of positions in the one place that depends on a tensor.

    Returns:
        The new index and, for a single position, the dimension of the result that it left; None
        if the index is to stay as it is.
    """
    items = index if isinstance(index, tuple) else (index,)
    dynamic = [i for i, item in enumerate(items) if _is_number(item) or _is_dynamic(item)]
    # With another tensor among the indices torch would pair their elements.
    others = [item for i, item in enumerate(items) if i not in dynamic]
    if len(dynamic) != 1 or any(isinstance(item, torch.Tensor | list) for item in others):
        return None
    position = dynamic[0]
    before, item, after = items[:position], items[position], items[position + 1 :]
    if _is_number(item):
        return (*before, item.reshape(1).to(torch.int64), *after), _place(before, after)
    dim = _dimension(tensor, items, position)
    size = offsets.difference(item.start, item.stop)
    step = 1 if item.step is None else item.step
    if size is None or not 1 <= size <= tensor.shape[dim] or not isinstance(step, int) or step < 1:
        return None
    return (*before, _range(item.start, tensor.shape[dim], size, step), *after), None


def _is_number(item: object) -> bool:
    return isinstance(item, torch.Tensor) and item.dim() == 0 and item.dtype in _INDEX_TYPES


def _place(before: tuple, after: tuple) -> int:
    """Return the dimension of a result that the index between two others makes."""
    if Ellipsis in before:
        return -1 - sum(not isinstance(item, int) for item in after)
    return sum(not isinstance(item, int) for item in before)


def _is_dynamic(item: object) -> bool:
    return isinstance(item, slice) and (
        isinstance(item.start, torch.Tensor) or isinstance(item.stop, torch.Tensor)
    )


def _dimension(tensor: torch.Tensor, items: tuple, position: int) -> int:
    """Return which dimension the index at ``position`` is about."""
    taking = [item is not None and item is not Ellipsis for item in items]
    if Ellipsis in items[:position]:
        return tensor.dim() - sum(taking[position:])
    return sum(taking[:position])

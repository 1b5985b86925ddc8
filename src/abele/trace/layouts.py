"""What results of an operator depend on, as a key; and a cache of results on tensors without data.

    relu(x); relu(y)   ->   one tensor that says how both results lie in memory

One call of torch takes 0.1 to 50 ms, and a graph repeats the same calls a thousand times.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, cast

import torch

from abele import _torch
from abele.containers import is_sequence
from abele.storage.values import bits
from abele.trace.known_results import results_of
from abele.trace.result_layouts import actual

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
    """An argument or a result of a kind that no key expresses."""


def layout_of(tensor: torch.Tensor, *, place: bool = True) -> Hashable:
    """Return the type of a tensor and how it lies in memory.

    Args:
        tensor: with or without data.
        place: also where in its memory it begins.

    Raises:
        UnknownError: it is complex, so that it may be conjugated lazily, or it is not dense.
    """
    if tensor.layout is not torch.strided or tensor.is_complex():
        raise UnknownError
    device = tensor.fake_device if isinstance(tensor, _torch.FakeTensor) else tensor.device
    where = tensor.storage_offset() if place else None
    return tensor.dtype, device, tensor.shape, tensor.stride(), where


def key_of_call(
    function: Hashable,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    of_tensor: OfTensor = layout_of,
) -> Hashable:
    """Return a key of everything that an operator's results can depend on.

    Args:
        function: the operator.
        args: its arguments.
        kwargs: further ones.
        of_tensor: the part of a tensor; called for each, in the order of the arguments.

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


class Results:
    """Results of operators, kept by what they depend on; shared, so nobody may change them."""

    def __init__(self):
        self._results: dict[Hashable, Any] = {}

    def of(
        self,
        target: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return an operator's results, perhaps from an earlier call with arguments laid out alike.

        Args:
            target: the operator; computes on tensors without data, and writes to none.
            args: its arguments, tensors of one fake mode among them.
            kwargs: further ones.
        """
        kwargs = kwargs or {}
        try:
            key = key_of_call(target, args, kwargs)
        except UnknownError:
            return actual(target, args, results_of(target, args, kwargs))
        if key not in self._results:
            self._results[key] = actual(target, args, results_of(target, args, kwargs))
        return self._results[key]

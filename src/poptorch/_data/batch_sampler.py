"""Combining the micro-batches of a user's batch sampler into the batch of one call.

Micro-batches are collated one by one: a collate function may pad or count within a micro-batch.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from poptorch._error import error
from poptorch._values.custom_types import parser_for


def grouped(micro_batches: Iterable[Any], size: int, drop_last: bool) -> Iterator[Any]:
    """Concatenate every `size` consecutive micro-batches.

    Args:
        micro_batches: Structures of tensors.
        size: How many make one combined batch.
        drop_last: Whether an incomplete last group is left out.
    """
    iterator = iter(micro_batches)
    while group := list(islice(iterator, size)):
        if len(group) == size or not drop_last:
            yield concatenated(group)


def concatenated(parts: list[Any], name: str = "batch") -> Any:
    """Join equal structures of tensors along dimension 0.

    Args:
        parts: Tensors; or tuples, lists, dicts or types with a custom parser, made of them.
            Values that are no tensors must be equal in all parts.
        name: What the value is called in error messages.

    Raises:
        poptorch.Error: The parts differ in structure or in a value that is no tensor.
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        kinds = sorted({type(part).__name__ for part in parts})
        raise _mismatch(name, f"types {kinds}")
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if parser := parser_for(first):
        columns = zip(*(parser.yieldTensors(part) for part in parts), strict=True)
        return parser.reconstruct(first, iter([torch.cat(column) for column in columns]))
    if isinstance(first, dict):
        return _concatenated_dicts(parts, name)
    if isinstance(first, tuple | list):
        return _concatenated_sequences(parts, name)
    if any(part != first for part in parts):
        raise _mismatch(name, f"values {parts}")
    return first


def _concatenated_dicts(parts: list[Any], name: str) -> Any:
    first = parts[0]
    if any(part.keys() != first.keys() for part in parts):
        raise _mismatch(name, f"keys {[sorted(map(str, part)) for part in parts]}")
    items = {key: concatenated([part[key] for part in parts], f"{name}[{key!r}]") for key in first}
    return items if type(first) is dict else type(first)(items)


def _concatenated_sequences(parts: list[Any], name: str) -> Any:
    first = parts[0]
    if any(len(part) != len(first) for part in parts):
        raise _mismatch(name, f"lengths {[len(part) for part in parts]}")
    items = [
        concatenated(list(column), f"{name}[{index}]")
        for index, column in enumerate(zip(*parts, strict=True))
    ]
    return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)


def _mismatch(name: str, difference: str) -> Exception:
    return error(
        f"The micro-batches of one combined batch differ: {name} has the {difference}. "
        "Let the dataset or its collate_fn return the same structure for every micro-batch"
    )

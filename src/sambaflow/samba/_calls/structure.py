"""Tensors in nested arguments and results, in one flat order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch


def flat_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Return the tensors of nested tuples, lists and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from flat_tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from flat_tensors(item)

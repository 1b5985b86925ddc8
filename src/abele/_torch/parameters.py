"""How torch tells a parameter from another tensor, which it does not promise to keep."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable

import torch


@contextlib.contextmanager
def counted_as_parameters(tensors: Iterable[torch.Tensor]) -> Generator[None]:
    """While open, ``isinstance(tensor, torch.nn.Parameter)`` is true of these tensors.

    Turning them into parameters would create new tensors. ``Module.get_parameter`` and users'
    forwards test for the class.
    """
    marked = list(tensors)
    for tensor in marked:
        tensor._is_param = True  # type: ignore[attr-defined] - what Parameter's metaclass reads
    try:
        yield
    finally:
        for tensor in marked:
            del tensor._is_param  # type: ignore[attr-defined]

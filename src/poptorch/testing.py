"""Comparison of models' results in tests."""

from typing import Any

import torch

__all__ = ["allclose"]


def allclose(ref: Any, other: Any) -> bool:
    """Return whether two nested results agree within ``torch.allclose``'s tolerances.

    Args:
        ref: a tensor, or a tuple or list of such values, nested as deep as one likes.
        other: compared with it; containers must be of the same type and length.
    """
    if isinstance(ref, torch.Tensor):
        same = isinstance(other, torch.Tensor) and ref.shape == other.shape
        return same and torch.allclose(ref, other.to(ref.dtype))
    if isinstance(ref, tuple | list):
        if type(ref) is not type(other) or len(ref) != len(other):
            return False
        return all(map(allclose, ref, other))
    raise TypeError(f"allclose compares tensors, tuples and lists, found {type(ref).__name__}.")

"""The casts of weights that ``torch.autocast`` keeps until its outermost block ends."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

# By tensor: the number of the node that has cast it, and the version of what was cast.
_made: Any = WeakIdKeyDictionary()


def are_kept() -> bool:
    """Return whether autocast keeps casts of weights at present."""
    return torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled()


def is_cast_once(tensor: torch.Tensor) -> bool:
    """Return whether autocast keeps the cast of a tensor."""
    return tensor.dtype == torch.float32 and tensor.requires_grad and tensor.is_leaf


def are_current(weights: Iterable[torch.Tensor]) -> bool:
    """Make the casts of weights that autocast does not keep yet.

    Returns:
        False if it keeps a cast of other values than the weight has now.
    """
    current = [_is_current(weight) for weight in weights]  # which makes all of them
    return all(current)


def _is_current(weight: torch.Tensor) -> bool:
    rows = weight if weight.dim() else weight.view(1)
    with torch.enable_grad():
        begin: Any = torch.ones((), requires_grad=True).clone().grad_fn
        node: Any = torch.matmul(rows, rows.new_zeros(rows.shape[-1], 0)).grad_fn
    while node is not None and node.name() != "ToCopyBackward0":
        node = node.next_functions[0][0] if node.next_functions else None
    number = -1 if node is None else node._sequence_nr()  # none: it was made under no_grad
    found = number, weight._version
    if number <= begin._sequence_nr() and _made.get(weight) != found:
        with torch.no_grad():
            kept = torch.matmul(rows, torch.eye(rows.shape[-1], device=rows.device))
            if not torch.equal(kept, rows.to(kept.dtype)):
                return False
    _made[weight] = found
    return True

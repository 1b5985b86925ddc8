"""Replacements of torch functions that read values, with checks at run time.

Where torch checks values first, the check is made when the program runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from abele.ops.value_check import unless
from abele.trace.decompositions import assumed_false

_any_torch: Any = torch  # some of its functions have no types
_Tensor: Any = torch.Tensor


def bincount(
    input: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> torch.Tensor:
    """Compute ``torch.bincount`` of the values 0 to ``minlength - 1``.

    Returns:
        Counts of shape ``[minlength]``, where torch's own form would return a longer tensor for
        larger values. Those raise ValueCheckError when the program runs.

    Raises:
        RuntimeError: the arguments do not have the shapes and types that torch asks for.
    """
    if not minlength or minlength < 0:
        return torch.bincount(input, weights, minlength)
    wrong_kind = input.is_floating_point() or input.is_complex() or input.dtype == torch.bool
    if input.dim() != 1 or wrong_kind:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != input.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    index, dtype = input.long(), torch.int64
    if weights is not None:
        dtype = torch.float32 if weights.dtype == torch.float32 else torch.float64
    ones = index.new_ones(index.shape) if weights is None else weights
    wrong = (index < 0) | (index >= minlength)
    counts = torch.zeros(minlength, dtype=dtype, device=input.device)
    counts = counts.scatter_add(0, index.masked_fill(wrong, 0), ones.to(dtype))
    return unless(
        wrong,
        counts,
        f"bincount with minlength={minlength} has the values 0 to {minlength - 1} in a static "
        "program, found a value outside. Pass a minlength that is larger than every value.",
    )


def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Compute ``torch.nn.functional.one_hot``; a class out of range stops the step."""
    result = F.one_hot(tensor, num_classes)
    if num_classes == -1:
        return result
    return unless(
        (tensor < 0) | (tensor >= num_classes),
        result,
        f"one_hot with num_classes={num_classes} has the classes 0 to {num_classes - 1}, found a "
        "class outside.",
    )


def _assuming(function: Callable[..., Any], message: str) -> Callable[..., torch.Tensor]:
    """Wrap a function so that it assumes valid values, and stops the step at invalid ones."""

    def computed(*args: Any, **kwargs: Any) -> torch.Tensor:
        with assumed_false() as asked:
            result = function(*args, **kwargs)
        for wrong in asked:
            result = unless(wrong, result, message)
        return result

    return computed


def narrow(input: torch.Tensor, dim: int, start: int | torch.Tensor, length: int) -> torch.Tensor:
    """Compute ``torch.narrow``; a tensor as start is an index at run time."""
    if not isinstance(start, torch.Tensor):
        return torch.narrow(input, dim, start, length)
    first = torch.where(start < 0, start + input.shape[dim], start)
    return input.index_select(dim, first + torch.arange(length, device=input.device))


_NAMED: dict[str, Callable[..., Any]] = {
    "bincount": bincount,
    "istft": _assuming(
        _any_torch.istft, "istft: the sum of squares of overlapping windows is 0 in some place."
    ),
    "narrow": narrow,
}
FORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    **{getattr(owner, name): form for name, form in _NAMED.items() for owner in (torch, _Tensor)},
    F.gaussian_nll_loss: _assuming(
        F.gaussian_nll_loss, "gaussian_nll_loss: var has negative entry/entries."
    ),
    F.one_hot: one_hot,
}

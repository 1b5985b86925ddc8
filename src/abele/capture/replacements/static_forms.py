"""Functions of torch whose own forms read values, in forms that do not.

Where torch checks values first, the check is made when the program runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from abele.errors import DataDependentError
from abele.ops.value_check import unless
from abele.trace.decompositions import assumed_false, constant_value
from abele.warn import user_line, warn_user

_any_torch: Any = torch  # some of its functions have no types
_Tensor: Any = torch.Tensor


def bincount(
    input: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> torch.Tensor:
    """Count the values 0 to ``minlength - 1``.

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
    """Compute ``torch.nn.functional.one_hot``; a class beyond the last stops the step."""
    result = F.one_hot(tensor, num_classes)
    if num_classes == -1:
        return result
    return unless(
        (tensor < 0) | (tensor >= num_classes),
        result,
        f"one_hot with num_classes={num_classes} has the classes 0 to {num_classes - 1}, found a "
        "class outside.",
    )


def cov(
    input: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Estimate the covariance matrix of the rows of ``input``, as ``torch.cov`` does.

    Raises:
        RuntimeError: the arguments do not have the shapes and types that torch asks for.
    """
    if fweights is None and aweights is None:
        return _plain_cov(input, correction)
    # Shapes and types are checked by torch itself, with weights that it may read.
    stand_ins = [
        None if each is None else torch.ones(each.shape, dtype=each.dtype, device=each.device)
        for each in (fweights, aweights)
    ]
    torch.cov(input, correction=correction, fweights=stand_ins[0], aweights=stand_ins[1])
    rows = input if input.dim() == 2 else input.reshape(1, -1)
    weights = fweights if aweights is None else aweights
    if fweights is not None and aweights is not None:
        weights = fweights * aweights
    assert weights is not None
    total = weights.sum()
    left = total - correction
    if aweights is not None and correction != 0:
        left = total - correction * (weights * aweights).sum() / total
    centred = rows - ((rows * weights).sum(1) / total).unsqueeze(1)
    products = centred @ (centred * weights).t().conj()
    covariance = torch.true_divide(products, left.clamp(min=0)).squeeze()
    for name, factors in (("fweights", fweights), ("aweights", aweights)):
        if factors is not None:
            covariance = unless(factors < 0, covariance, f"cov(): {name} cannot be negative.")
    return unless(total == 0, covariance, "cov(): weights sum to zero, can't be normalized.")


def _plain_cov(input: torch.Tensor, correction: int) -> torch.Tensor:
    if input.dim() > 2 or input.dtype == torch.bool:
        return torch.cov(input, correction=correction)  # torch says what is wrong
    rows = input if input.dim() == 2 else input.reshape(1, -1)
    left = rows.shape[1] - correction
    if left <= 0:
        warn_user(
            "cov(): degrees of freedom is <= 0. Correction should be strictly less than the "
            "number of observations.",
            UserWarning,
        )
    count = torch.scalar_tensor(rows.shape[1], dtype=torch.int64, device=input.device)
    divisor = torch.scalar_tensor(max(left, 0), dtype=torch.int64, device=input.device)
    centred = rows - (rows.sum(1) / count).unsqueeze(1)
    return torch.true_divide(centred @ centred.t().conj(), divisor).squeeze()


def corrcoef(input: torch.Tensor) -> torch.Tensor:
    """Estimate the correlation matrix of the rows of ``input``, as ``torch.corrcoef`` does."""
    if input.dim() > 2:
        return torch.corrcoef(input)
    matrix = cov(input)
    if matrix.dim() == 0:
        return matrix / matrix
    variances = matrix.diag()
    deviations = torch.sqrt(variances.real if variances.is_complex() else variances)
    matrix = matrix / deviations.view(-1, 1) / deviations.view(1, -1)
    if matrix.is_complex():
        return torch.complex(matrix.real.clip(-1, 1), matrix.imag.clip(-1, 1))
    return matrix.clip(-1, 1)


def gaussian_nll_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """Compute ``torch.nn.functional.gaussian_nll_loss``; a negative variance stops the step.

    Raises:
        ValueError: the shape of ``var`` or the reduction is not one of these.
    """
    if not isinstance(var, torch.Tensor):
        return F.gaussian_nll_loss(input, target, var, full, eps, reduction)
    negative = var.detach() < 0
    spread = _beside(input, var).clone()
    with torch.no_grad():
        spread.clamp_(min=eps)
    # The same operations as torch's, in their order: the bits depend on it.
    loss = 0.5 * (torch.log(spread) + (input - target) ** 2 / spread)
    loss = loss + 0.5 * math.log(2 * math.pi) if full else loss
    reductions = {"none": lambda: loss, "mean": loss.mean, "sum": loss.sum}
    if reduction not in reductions:
        raise ValueError(f"{reduction} is not valid")
    message = "gaussian_nll_loss: var has negative entry/entries."
    return unless(negative, reductions[reduction](), message)


def _beside(input: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    if var.shape == input.shape:
        return var
    if var.shape == input.shape[:-1]:
        return var.unsqueeze(-1)
    differing = [v for i, v in zip(input.shape, var.shape, strict=False) if i != v]
    if var.dim() != input.dim() or differing != [1]:
        raise ValueError("var is of incorrect size")
    return var


def istft(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Compute ``torch.istft``; windows that do not overlap stop the step."""
    with assumed_false() as asked:
        result = _any_torch.istft(input, *args, **kwargs)
    for wrong in asked:
        message = "istft: the sum of squares of overlapping windows is 0 in some place."
        result = unless(wrong, result, message)
    return result


def narrow(input: torch.Tensor, dim: int, start: int | torch.Tensor, length: int) -> torch.Tensor:
    """Compute ``torch.narrow``; a start that is a tensor is an index when the program runs."""
    if not isinstance(start, torch.Tensor):
        return torch.narrow(input, dim, start, length)
    first = torch.where(start < 0, start + input.shape[dim], start)
    return input.index_select(dim, first + torch.arange(length, device=input.device))


def tensor_split(
    input: torch.Tensor, indices_or_sections: Any, dim: int = 0
) -> tuple[torch.Tensor, ...]:
    """Compute ``torch.tensor_split``, by a tensor if that is a constant.

    Raises:
        DataDependentError: the positions are known only when the program runs.
    """
    if not isinstance(indices_or_sections, torch.Tensor):
        return torch.tensor_split(input, indices_or_sections, dim)
    known = constant_value(indices_or_sections)
    if known is None:
        raise DataDependentError(
            f"forward splits a tensor at positions that are a tensor, at {user_line()}. How long "
            "the parts are depends on its values. Pass the positions as a list of ints."
        )
    return torch.tensor_split(input, _Tensor.tolist(known), dim)


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()


def index_fill_(
    input: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor | float
) -> torch.Tensor:
    """Compute ``Tensor.index_fill_``; the value's gradient is that of a mask."""
    if not _has_gradient(value) or input.dim() == 0 or constant_value(index) is not None:
        return input.index_fill_(dim, index, value)
    chosen = torch.zeros(input.shape[dim], dtype=torch.bool, device=input.device)
    chosen = chosen.index_fill(0, index, value=True)
    return input.masked_fill_(
        chosen.reshape(-1, *[1] * (input.dim() - 1 - dim % input.dim())), value
    )


def index_fill(
    input: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor | float
) -> torch.Tensor:
    """Compute ``torch.index_fill``; arguments are those of ``index_fill_``."""
    return index_fill_(input.clone(), dim, index, value)


def index_put_(
    input: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """Compute ``Tensor.index_put_``; one value with a gradient fills where a mask is true."""
    mask = indices[0] if len(indices) == 1 else None
    fills = isinstance(mask, torch.Tensor) and mask.dtype is torch.bool and values.numel() == 1
    if not fills or accumulate or not _has_gradient(values) or values.dim() > 1:
        return input.index_put_(indices, values, accumulate)
    assert mask is not None
    if constant_value(mask) is not None:
        return input.index_put_(indices, values)
    mask = mask.reshape(*mask.shape, *[1] * (input.dim() - mask.dim()))
    return input.masked_fill_(mask, values.reshape(()).to(input.dtype))


def index_put(
    input: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """Compute ``torch.index_put``; arguments are those of ``index_put_``."""
    return index_put_(input.clone(), indices, values, accumulate)


def assign(input: torch.Tensor, index: Any, value: Any) -> None:
    """Write ``input[index] = value``; arguments are those of ``index_put_``."""
    is_mask = isinstance(index, torch.Tensor) and index.dtype is torch.bool and index.dim() > 0
    if is_mask and _has_gradient(value) and value.numel() == 1:
        index_put_(input, (index,), value)
    else:
        input[index] = value


def _by_copy(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return an in-place form, of which functionalisation has none of its own."""

    def in_place(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return input.copy_(function(input, *args, **kwargs))

    return in_place


_NAMED: dict[str, Callable[..., Any]] = {
    "bincount": bincount,
    "cov": cov,
    "corrcoef": corrcoef,
    "istft": istft,
    "narrow": narrow,
    "tensor_split": tensor_split,
    "index_fill": index_fill,
    "index_put": index_put,
}
FORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    **{getattr(owner, name): form for name, form in _NAMED.items() for owner in (torch, _Tensor)},
    torch.Tensor.index_fill_: index_fill_,
    torch.Tensor.index_put_: index_put_,
    torch.Tensor.__setitem__: assign,
    torch.Tensor.ldexp_: _by_copy(_Tensor.ldexp),
    torch.Tensor.polygamma_: _by_copy(_Tensor.polygamma),
    F.gaussian_nll_loss: gaussian_nll_loss,
    F.one_hot: one_hot,
}

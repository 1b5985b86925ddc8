"""Matrix products computed in slices, one after the other."""

import torch

from poptorch._error import error, require
from poptorch.enums import MatMulSerializationMode


def serializedMatMul(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: MatMulSerializationMode,
    factor: int = 0,
    keep_precision: bool = False,
) -> torch.Tensor:
    """``torch.matmul`` in slices, which need less memory for what a product makes on its way.

    Slicing InputChannels or OutputChannels sums up the same products for every element of the
    result; slicing ReducingDim sums within each slice first. So results equal those of
    ``torch.matmul`` up to rounding.

    Differs from the original: slices are taken on the host as well, and factors of 0 and 1 mean one
    product.

    Args:
        lhs: ``[..., input channels, reducing]``.
        rhs: ``[..., reducing, output channels]``.
        mode: which dimension is sliced; Disabled for none.
        factor: number of slices.
        keep_precision: half operands are multiplied and summed, gradients included, in float32; the
            result is rounded once.

    Returns:
        The product, of the operands' type.

    Raises:
        AssertionError: mode, factor or keep_precision of another type.
        poptorch.Error: the factor does not divide the dimension, or there is no such dimension.
    """
    require(
        isinstance(mode, MatMulSerializationMode),
        f"mode must be a poptorch.MatMulSerializationMode, not {mode!r}",
    )
    require(isinstance(factor, int), f"factor must be an int, not {factor!r}")
    require(isinstance(keep_precision, bool), f"keep_precision must be a bool: {keep_precision!r}")
    dtype = torch.result_type(lhs, rhs)
    wide = keep_precision and dtype in (torch.float16, torch.bfloat16)
    if mode is MatMulSerializationMode.Disabled or factor in (0, 1):
        product = _product(lhs, rhs, wide)
    elif mode is MatMulSerializationMode.ReducingDim:
        product = _sum_of_slices(lhs, rhs, factor, wide)
    else:
        product = _joined_slices(lhs, rhs, mode, factor, wide)
    return product.to(dtype) if wide else product


def _product(lhs: torch.Tensor, rhs: torch.Tensor, wide: bool) -> torch.Tensor:
    return torch.matmul(lhs.float(), rhs.float()) if wide else torch.matmul(lhs, rhs)


def _sum_of_slices(lhs: torch.Tensor, rhs: torch.Tensor, factor: int, wide: bool) -> torch.Tensor:
    left = _slices(lhs, -1, factor)
    right = _slices(rhs, -2 if rhs.dim() > 1 else -1, factor)
    total = _product(left[0], right[0], wide)
    for one, other in zip(left[1:], right[1:], strict=True):
        total = total + _product(one, other, wide)
    return total


def _joined_slices(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: MatMulSerializationMode,
    factor: int,
    wide: bool,
) -> torch.Tensor:
    by_rows = mode is MatMulSerializationMode.InputChannels
    dim, sliced, whole = (-2, lhs, rhs) if by_rows else (-1, rhs, lhs)
    if sliced.dim() < 2:
        raise error(
            f"serializedMatMul in mode {mode.name} slices a matrix, found an operand of shape "
            f"{list(sliced.shape)}."
        )
    # Widened before slicing: its gradient, a sum over all slices, is then summed in float32 too.
    whole = whole.float() if wide else whole
    dtype = torch.result_type(lhs, rhs)
    parts = [
        (_product(part, whole, wide) if by_rows else _product(whole, part, wide)).to(dtype)
        for part in _slices(sliced, dim, factor)
    ]
    # A vector on the other side leaves a result with one dimension less.
    return torch.cat(parts, dim=-1 if whole.dim() == 1 else dim)


def _slices(operand: torch.Tensor, dim: int, factor: int) -> tuple[torch.Tensor, ...]:
    size = operand.shape[dim]
    if factor < 1 or size % factor:
        raise error(
            f"The factor of serializedMatMul must divide the dimension that is sliced: {size} "
            f"cannot be cut into {factor} equal slices."
        )
    return operand.split(size // factor, dim)

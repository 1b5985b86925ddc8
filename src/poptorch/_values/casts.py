"""Checks that casts to the type of an earlier element keep a tensor's values."""

import torch

from poptorch._error import require


def require_survival(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Check that a tensor may be cast: numbers stay the same, except that floats may be rounded.

    Args:
        name: What the tensor is, for the message.
        tensor: The values; any shape and dtype.
        dtype: The type that they are about to get.

    Raises:
        AssertionError: A value would become another one (0.5 as an integer, 300 as int8), lose
            digits as an integer that floats cannot hold, or overflow to an infinity. Complex
            numbers do not become real.
    """
    lost = _lost(tensor.detach(), dtype)
    require(
        not bool(lost.any()),
        f"{name} is {tensor.dtype} and holds {_first(tensor, lost)}, which {dtype}, the type of "
        "the first element, cannot hold. Let the dataset return tensors of one type, for example "
        f"with .to({tensor.dtype}) on all of them",
    )


def how(source: torch.dtype, target: torch.dtype) -> str:
    """Return words for a cast that `require_survival` allows."""
    rounds = (
        _is_inexact(source)
        and _is_inexact(target)
        and torch.finfo(target).eps > torch.finfo(source).eps
    )
    return f"rounded to {target}" if rounds else f"cast to {target}"


def _lost(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Mark the values that a cast would lose."""
    if tensor.is_complex() and not dtype.is_complex:
        return torch.ones_like(tensor, dtype=torch.bool)
    cast = tensor.to(dtype)
    if _is_inexact(tensor.dtype) and _is_inexact(dtype):
        return _comparable(tensor).isfinite() & ~_comparable(cast).isfinite()
    restored = cast.real if dtype.is_complex else cast
    # The sign, because -1 as uint8 comes back as -1.
    same_sign = (_comparable(restored) < 0) == (_comparable(tensor) < 0)
    return (restored.to(tensor.dtype) != tensor) | ~same_sign


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    # torch does not compare uint32 or float8 with numbers.
    return tensor if tensor.is_complex() else tensor.double()


def _first(tensor: torch.Tensor, marked: torch.Tensor) -> object:
    return tensor[marked][0].item() if marked.any() else None

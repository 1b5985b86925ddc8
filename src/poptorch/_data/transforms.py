"""Transforms of torchvision that act on each picture alone, on whole batches with the same bits.

Known by class name and module: torchvision need not import. Parameters are read from the objects at
each call, so a program may change them at any time.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

_V1 = "torchvision.transforms.transforms"
_V2 = "torchvision.transforms.v2."
_CHANNELS_FIRST = 4  # axes of a batch of pictures


class UnknownError(Exception):
    """A sampler, collation or data set that may not act on each item alone."""


class Pictures:
    """Pictures that the data set would give as objects of PIL.

    Args:
        values: uint8 [rows, channels, height, width].
    """

    def __init__(self, values: torch.Tensor):
        self.values = values


def apply(transform: Any, items: Any) -> Any:
    """Apply a transform to every item of a batch.

    Args:
        transform: an object of one of the classes that are known.
        items: ``Pictures``, or a tensor whose dimension 0 counts items.

    Raises:
        UnknownError: the transform is not known, or does not take such items.
    """
    kind = type(transform)
    known = _KNOWN.get((kind.__module__, kind.__name__))
    if known is None:
        raise UnknownError(f"the transform {kind.__name__} is not known to act on each item alone")
    return known(transform, items)


def _compose(transform: Any, items: Any) -> Any:
    for each in transform.transforms:
        items = apply(each, items)
    return items


def _to_tensor(transform: Any, items: Any) -> torch.Tensor:
    return _pictures(transform, items).to(torch.get_default_dtype()).div_(255)


def _pil_to_tensor(transform: Any, items: Any) -> torch.Tensor:
    return _pictures(transform, items)


def _convert_dtype(transform: Any, items: Any) -> torch.Tensor:
    values, largest = _to_floats(transform, items)
    return values if largest is None else values.div_(largest)


def _to_dtype(transform: Any, items: Any) -> torch.Tensor:
    values, largest = _to_floats(transform, items)
    if largest is None or not transform.scale:
        return values
    return values.mul_(1.0 / largest)  # rounded otherwise than a division


def _to_floats(transform: Any, items: Any) -> tuple[torch.Tensor, int | None]:
    """Cast as a transform says; of integers also return the largest number of their type."""
    values, dtype = _tensor(transform, items), transform.dtype
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UnknownError(f"{type(transform).__name__} to {dtype} is not known")
    largest = None if values.is_floating_point() else torch.iinfo(values.dtype).max
    return values.to(dtype), largest


def _normalize(transform: Any, items: Any) -> torch.Tensor:
    values = _tensor(transform, items)
    if not values.is_floating_point() or values.ndim != _CHANNELS_FIRST:
        raise UnknownError("Normalize of such pictures is not known")
    mean, deviation = (_per_channel(each, values.dtype) for each in (transform.mean, transform.std))
    # Earlier transforms have made these values, so nobody else sees that they are written.
    return values.sub_(mean).div_(deviation)


def _per_channel(numbers: Any, dtype: torch.dtype) -> torch.Tensor:
    if not isinstance(numbers, list | tuple):
        raise UnknownError("Normalize by other than a list of numbers is not known")
    # As text, because 0.0 and -0.0 are equal.
    return _column(tuple(float(number).hex() for number in numbers), dtype)


@functools.lru_cache(maxsize=64)
def _column(numbers: tuple[str, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([*map(float.fromhex, numbers)], dtype=dtype).view(-1, 1, 1)


def _pictures(transform: Any, items: Any) -> torch.Tensor:
    if not isinstance(items, Pictures):
        raise UnknownError(f"{type(transform).__name__} of a tensor is not known")
    return items.values


def _tensor(transform: Any, items: Any) -> torch.Tensor:
    if isinstance(items, Pictures):
        raise UnknownError(f"{type(transform).__name__} of an object of PIL is not known")
    return items


_KNOWN: dict[tuple[str, str], Callable[[Any, Any], Any]] = {
    (_V1, "Compose"): _compose,
    (_V1, "ToTensor"): _to_tensor,
    (_V1, "PILToTensor"): _pil_to_tensor,
    (_V1, "ConvertImageDtype"): _convert_dtype,
    (_V1, "Normalize"): _normalize,
    (f"{_V2}_container", "Compose"): _compose,
    (f"{_V2}_type_conversion", "PILToTensor"): _pil_to_tensor,
    (f"{_V2}_type_conversion", "ToImage"): _pil_to_tensor,
    (f"{_V2}_misc", "ToDtype"): _to_dtype,
    (f"{_V2}_misc", "Normalize"): _normalize,
}

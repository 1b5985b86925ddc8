"""Places of the lowering `emitted`, and which elements of memory they are."""

import itertools

import torch

from abele.targets.translation.places import Buffer, Kind, Place


def place_of(view: torch.Tensor, buffer: Buffer | None = None) -> Place:
    """Where a view lies in memory that its storage stands for."""
    if buffer is None:
        size = view.untyped_storage().nbytes() // view.dtype.itemsize
        buffer = Buffer(Kind.ARENA, 0, view.dtype, size)
    return Place(buffer, tuple(view.shape), view.stride(), int(view.storage_offset()))


def elements(place: Place) -> list[int]:
    """Where each element lies, in order of their indices."""
    steps = itertools.product(*map(range, place.shape))
    return [
        place.offset + sum(i * s for i, s in zip(index, place.stride, strict=True))
        for index in steps
    ]

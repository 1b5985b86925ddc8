"""Buffers, and strided views of them, as locations of a program's values."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math

import torch


class Kind(enum.Enum):
    """The owner of a buffer's memory."""

    INPUT = "input"  # whoever calls the program
    CONSTANT = "constant"  # the program's graph
    OUTPUT = "output"  # whoever called: made anew for each call
    ARENA = "arena"  # the compiled program: one piece that is kept between calls
    FOREIGN = "foreign"  # torch, which made it as a result


@dataclasses.dataclass(eq=False)
class Buffer:
    """A block of memory with a dtype and an owner.

    Attributes:
        kind: the owner.
        index: number of the slot or constant, or of the buffer among those of its kind.
        dtype: of its elements.
        size: number of elements.
        inside: enclosing buffer and element offset in it, if this is a sub-buffer.
    """

    kind: Kind
    index: int
    dtype: torch.dtype
    size: int
    inside: tuple[Buffer, int] | None = None

    @property
    def bytes(self) -> int:
        """Size of the buffer in bytes."""
        return self.size * self.dtype.itemsize

    def root(self) -> tuple[Buffer, int] | None:
        """Return the outermost enclosing buffer and the element offset in it, or None."""
        if self.inside is None or self.inside[0].inside is None:
            return self.inside
        chain: list[Buffer] = []
        buffer: Buffer = self
        while buffer.inside is not None:
            chain.append(buffer)
            buffer = buffer.inside[0]
        offset = 0
        for piece in reversed(chain):  # sums of many steps are pieces of pieces, a hundred deep
            assert piece.inside is not None
            offset += piece.inside[1]
            piece.inside = buffer, offset
        return self.inside


@dataclasses.dataclass(frozen=True)
class Place:
    """A strided view of a buffer.

    Attributes:
        buffer: the buffer.
        shape: its sizes.
        stride: elements from one to the next, by dimension.
        offset: of the first element.
    """

    buffer: Buffer
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the view's elements."""
        return self.buffer.dtype

    @functools.cached_property
    def size(self) -> int:
        """Number of elements of the view."""
        return math.prod(self.shape)

    @functools.cached_property
    def contiguous(self) -> bool:
        """True if the view's elements are contiguous in row-major order."""
        return is_contiguous(self.shape, self.stride)

    @property
    def whole(self) -> bool:
        """True if the view covers all of its buffer, in any element order."""
        fills = self.size == 0 or is_dense(self.shape, self.stride)
        return fills and self.offset == 0 and self.size == self.buffer.size

    def stride_is(self, stride: tuple[int, ...]) -> bool:
        """Return whether ``stride`` equals the view's strides, ignoring dimensions of size 1."""
        pairs = zip(self.shape, self.stride, stride, strict=True)
        return stride == self.stride or all(size == 1 or a == b for size, a, b in pairs)

    def resolved(self) -> Place:
        """Return the view as a view of the outermost enclosing buffer."""
        piece = self.buffer.root()
        if piece is None:
            return self
        buffer, offset = piece
        return Place(buffer, self.shape, self.stride, self.offset + offset)

    def over(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the view's strides when it is broadcast to ``shape``."""
        return broadcast_stride(self.shape, self.stride, shape)


def laid_out(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    """Copy a tensor into the strides of a view.

    Args:
        tensor: with the view's shape and dtype; constant along dimensions of stride 0.
        place: the view with the strides.
    """
    repeated = [n > 1 and step == 0 for n, step in zip(place.shape, place.stride, strict=True)]
    once = [1 if each else n for each, n in zip(repeated, place.shape, strict=True)]
    for dim, each in enumerate(repeated):
        tensor = tensor.narrow(dim, 0, 1) if each else tensor
    made = torch.empty_strided(once, place.stride, dtype=place.dtype, device=tensor.device)
    return made.copy_(tensor).expand(place.shape)


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row-major strides of a shape."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@functools.lru_cache(maxsize=1 << 12)  # a program has few shapes, and asks often
def is_contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Return whether shape and strides are contiguous in row-major order."""
    step = 1
    for size, each in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and each != step:
            return False
        step *= max(size, 1)
    return True


@functools.lru_cache(maxsize=1 << 12)
def broadcast_stride(
    shape: tuple[int, ...], stride: tuple[int, ...], wider: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the strides of a tensor when it is broadcast to a wider shape."""
    known = zip(shape, stride, strict=True)
    missing = (0,) * (len(wider) - len(shape))
    return missing + tuple(0 if size == 1 else each for size, each in known)


@functools.lru_cache(maxsize=1 << 12)
def is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Return whether a strided tensor fills a block of memory without gaps or repeats."""
    step = 1
    for size, each in sorted(zip(shape, stride, strict=True), key=lambda pair: pair[1]):
        if size == 1:
            continue
        if each != step:
            return False
        step *= size
    return True

"""What oneDNN works in while it computes a transposed convolution.

Sizes are those of oneDNN 3.12, equal with AVX2 and AVX-512. Where the window moves by more than one
it is the library's code for the gradient of a strided convolution's image, which a transposed one
is: each thread has a padded copy of an image, with room for windows that reach over the edge.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch

from abele.arena.convolution_shapes import Convolution, blocked

_PAGE = 4096
#: Numbers that a copy of an image, or of rows of a result, is a multiple of.
_PIECE = 4096
#: Bytes that describe a product of matrices: there is one for each element of a window.
_PRODUCT = 40
#: Bytes that each use of the memory, and the memory itself, begin at a multiple of.
_ALIGNED, _BASE = 4096, 128


def scratch(c: Convolution, block: int) -> int:
    """Bytes of the library's memory for a transposed convolution; 0 if it takes none.

    At most that much is taken where the last stride does not divide the width of the result and
    there are several threads, as they share a row.

    Args:
        c: the convolution, in float32.
        block: channels that lie beside each other where no stride is above one.
    """
    odd = any(side % stride for side, stride in zip(c.y.shape[2:], c.stride, strict=True))
    # Then it does not add the bias as it goes, but to a result in this memory.
    added = blocked(c.y, 1 if c.strided else block) + _BASE if c.bias else 0
    if not c.strided:
        return added
    return _BASE + _strided(c) + (added if odd else 0)


def scratch_of_gradient(c: Convolution) -> int:
    """Likewise for the gradient of a plain convolution's image."""
    if c.transposed or c.grouped or not c.strided:
        return 0
    return _strided(dataclasses.replace(c, x=c.y, y=c.x))


def _strided(c: Convolution) -> int:
    """Bytes of copies and descriptions of products, for each thread."""
    size = c.x.element_size()
    places = math.prod(side + sum(over) for side, over in _sides(c))
    copied = _upto(c.x.shape[1] * places, _PIECE) * size
    products = _upto(_upto(_PRODUCT * math.prod(c.w.shape[2:]), _PAGE), _PRODUCT)
    each = [copied, products, _PAGE]
    width, stride = c.y.shape[-1], c.stride[-1]
    if width % stride:
        each.append(_upto(c.y.shape[1] * stride * _upto(width, stride), _PIECE) * size)
    return sum(_ALIGNED + torch.get_num_threads() * part for part in each)


def _sides(c: Convolution) -> Iterator[tuple[int, tuple[int, int]]]:
    """By axis: elements of the image, and windows that reach over its beginning and its end."""
    sides = zip(c.x.shape[2:], c.w.shape[2:], c.y.shape[2:], strict=True)
    steps = zip(c.stride, c.padding, strict=True)
    for (side, window, made), (stride, padding) in zip(sides, steps, strict=True):
        end = (side - 1) * stride + window - padding - made
        yield side, (_over(window, padding, stride), _over(window, end, stride))


def _over(window: int, padding: int, stride: int) -> int:
    return max(0, window - 1 - padding) // stride


def _upto(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple

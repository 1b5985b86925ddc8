"""Memory that our kernels take beside tensors, and keep for their next call; see ``calls.h``.

The sizes are those of ``conv_winograd.cpp`` and ``conv_pointwise.cpp``; what other kernels take is
little beside them.
"""

from __future__ import annotations

import torch

from abele.kernels import pointwise, winograd
from abele.kernels.convolution import Convolution
from abele.kernels.ways import Way, way_of

_POINTS, _FLOAT = 16, 4
_BLOCK = 112  # tiles that a thread takes through all steps at once
_LEAST_CHUNK, _MOST_CHUNK, _CHUNK_FLOATS = 64, 256, 2**16
_PARTS_FLOATS, _MOST_PARTS = 2**22, 16
_LONG_ROW = 64


def bytes_of(convolution: Convolution) -> int:
    """Bytes that a convolution, or its backward, takes and touches."""
    way = way_of(convolution)
    if way is Way.POINTWISE:
        return pointwise.scratch(convolution)
    if way is not Way.WINOGRAD:
        return 0
    lanes = winograd.lanes(convolution)
    assert lanes is not None  # or it would be another way
    outputs, inputs = convolution.weight.shape[:2]
    if not convolution.backward:
        return _of_pass(convolution, outputs, inputs, lanes)
    of_images = _of_pass(convolution, inputs, outputs, lanes)
    return max(of_images, _of_weight_gradient(convolution, lanes))


def _of_pass(convolution: Convolution, outputs: int, inputs: int, lanes: int) -> int:
    """Bytes of forward, or of the image's gradient: weights, and a block of tiles per thread."""
    threads, tiles = torch.get_num_threads(), _tiles(convolution)
    blocks = min(-(-tiles // _BLOCK // threads) * threads, tiles)
    of_block = _POINTS * (-(-tiles // max(blocks, 1)) * _rows(convolution, lanes) + 2 * lanes)
    return _FLOAT * (_POINTS * _padded(outputs, lanes) * inputs + threads * of_block)


def _of_weight_gradient(convolution: Convolution, lanes: int) -> int:
    """Bytes of all sums, and of a chunk of tiles for the threads that share some."""
    outputs, inputs = convolution.weight.shape[:2]
    threads, tiles, rows = torch.get_num_threads(), _tiles(convolution), _rows(convolution, lanes)
    size = _POINTS * inputs * _padded(outputs, lanes)
    chunk = max(_CHUNK_FLOATS, size) // (_POINTS * rows)
    chunk = min(max(chunk, _LEAST_CHUNK), _MOST_CHUNK)
    parts = min(max(_PARTS_FLOATS // size, 1), _MOST_PARTS, -(-tiles // chunk))
    chunk = min(chunk, -(-tiles // max(parts, 1)))
    rooms = threads if parts % threads == 0 or parts >= 4 * threads else 1
    return _FLOAT * (parts * size + rooms * _POINTS * (chunk * rows + 2 * lanes))


def _rows(convolution: Convolution, lanes: int) -> int:
    """Numbers of a tile's row of inputs and its row of results."""
    return sum(_pitch(channels, lanes) for channels in convolution.weight.shape[:2])


def _tiles(convolution: Convolution) -> int:
    """Tiles of 2 x 2 of the result."""
    count = convolution.image.shape[0]
    for edge, padding in zip(convolution.image.shape[2:], convolution.padding, strict=True):
        count *= -(-(edge + 2 * padding - 2) // 2)
    return count


def _padded(channels: int, lanes: int) -> int:
    return -(-channels // lanes) * lanes


def _pitch(channels: int, lanes: int) -> int:
    return _padded(channels, lanes) + (0 if channels < _LONG_ROW else lanes)

"""Products that are computed side by side, because each of them leaves much of a GPU idle.

The gradients of a layer's input and of its weight need nothing of each other. With 768 rows and 128
columns either takes some twenty blocks of an H200's 132 multiprocessors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch

from abele.targets.cuda.emitted import blas
from abele.targets.streams import side_streams
from abele.targets.translation.operations import Foreign, Operation

# Libraries give so many rows and columns of a result to a block, more or less.
_TILE = 64
# Products of more blocks fill most GPUs alone.
_MOST_BLOCKS = 256
#: So many at a time.
MOST = 4


@dataclasses.dataclass(eq=False)
class Beside:
    """Products that need nothing of each other.

    Attributes:
        operations: two of them or more.
    """

    operations: list[Foreign]


def leaves_room(operation: Operation) -> bool:
    """Return whether an operation is a GEMM that leaves room for another one in parallel."""
    if not blas.is_product(operation):
        return False
    *batch, rows, columns = operation.writes[0].shape
    return math.prod(batch) * -(-rows // _TILE) * -(-columns // _TILE) <= _MOST_BLOCKS


def together(works: Sequence[Callable[[], object]]) -> None:
    """Queue works side by side: the first on the current stream, the others on streams beside it.

    All begin where the current stream is and it waits for them at the end. So memory that a stream
    frees is only used again after whatever used it, on whichever stream.

    Args:
        works: they need nothing of each other.
    """
    first, *others = works
    current, streams = torch.cuda.current_stream(), side_streams(len(others))
    for stream, work in zip(streams, others, strict=True):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            work()
    first()
    for stream in streams:
        current.wait_stream(stream)

"""Calls of device functions by thread blocks, as parts of launches that also contain loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from abele.targets.translation.operations import Operation
from abele.targets.translation.places import Place


@dataclasses.dataclass(eq=False)
class Blocks(Operation):
    """A call of a function of device.h, once per thread block.

    Attributes:
        what: name for reports.
        body: the CUDA statement; ``p`` has the addresses of inputs, then of outputs, and then
            ``numbers``, ``block`` is the index of the block and ``size`` that of the operation.
            Equal statements share a kernel, so pass sizes as ``numbers``.
        size: of all blocks together.
        of_block: part of ``size`` per block.
        numbers: integer arguments below 2^32.
    """

    what: str
    body: str
    size: int
    of_block: int = 1
    numbers: tuple[int, ...] = ()


def call(
    name: str,
    reads: list[Place],
    writes: list[Place],
    blocks: int,
    numbers: Sequence[int],
    settings: Sequence[float] = (),
) -> Blocks:
    """Return an operation that calls a device function in each thread block."""
    count = len(reads) + len(writes)
    arguments = [
        *(f"abele::number(p[{count + i}])" for i in range(len(numbers))),
        *(f"{each!r}f" for each in settings),
        *(f"(const float*)p[{i}]" for i in range(len(reads))),
        *(f"(float*)p[{i}]" for i in range(len(reads), count)),
    ]
    body = f"abele::{name}(block, {', '.join(arguments)});"
    return Blocks(reads, writes, name, body, blocks, numbers=tuple(numbers))

"""Calls that read and write 16 bits themselves, without float32 copies of whole tensors.

GEMMs and group norms convert what they read block by block, and round what they write:

    wide = float32(weight); y = multiply(x, wide)   ->   y = multiply(x, weight)
    y = multiply(x, weight); rounded = float16(y)   ->   rounded = multiply(x, weight)

Operands are replaced during translation, results afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from abele.targets.translation.operations import Call, Operation, Pointwise
from abele.targets.translation.places import Buffer, Kind, Place
from abele.targets.translation.pointwise import HALF

_CAST = torch.ops.aten._to_copy.default


@dataclasses.dataclass(eq=False)
class RoundingCall(Call):
    """A call of which some results may have 16 bits.

    Attributes:
        form: returns the call's text for the tensors that it reads and writes.
        rounds: indices of such results.
    """

    form: Callable[[Sequence[Place], Sequence[Place]], str]
    rounds: tuple[int, ...]

    def rounded(self, index: int, result: Place) -> None:
        """Write a result in 16 bits, and update the call's text."""
        self.writes[index] = result
        self.text = self.form(self.reads, self.writes)


def in_16_bits(translator: Any, place: Place) -> Place:
    """Return the 16-bit view of which a float32 view is a copy; others as they are.

    Args:
        translator: of the program.
        place: an operand of a call that converts what it reads.
    """
    cast = translator.writers.get(place.buffer)
    if place.dtype is not torch.float32 or cast is None or not _is_cast(cast):
        return place
    if cast.reads[0].dtype not in HALF:
        return place
    source, copy = cast.reads[0], cast.writes[0]
    if source.shape != copy.shape or not source.stride_is(copy.stride) or copy.offset:
        return place
    return Place(source.buffer, place.shape, place.stride, source.offset + place.offset)


def rounded_by_calls(
    operations: Sequence[Operation], returned: Collection[Buffer]
) -> list[Operation]:
    """Let calls round results of which only a cast to 16 bits is read; drop casts without readers.

    Args:
        operations: in program order, with views of outermost buffers.
        returned: buffers of the program's results.
    """
    readers: dict[Buffer, list[Operation]] = {}
    writers: dict[Buffer, int] = {}
    for operation in operations:
        for place in operation.reads:
            readers.setdefault(place.buffer, []).append(operation)
        for place in operation.writes:
            writers[place.buffer] = writers.get(place.buffer, 0) + 1
    dropped = set[Operation]()
    for operation in operations:
        if isinstance(operation, RoundingCall):
            for index in operation.rounds:
                buffer = operation.writes[index].buffer
                users = readers.get(buffer, [])
                free = buffer.kind is Kind.ARENA and writers[buffer] == 1 and len(users) == 1
                if not free or not _may_be_written(operation.writes[index], users[0], writers):
                    continue
                if _is_read_by_calls(users[0].writes[0].buffer, readers):
                    _round(operation, index, users[0])
                    dropped.add(users[0])
        elif _is_cast(operation) and operation.writes[0].dtype is torch.float32:
            copy = operation.writes[0].buffer
            if copy.kind is Kind.ARENA and copy not in readers and copy not in returned:
                dropped.add(operation)
    return [each for each in operations if each not in dropped]


def _round(call: RoundingCall, index: int, cast: Operation) -> None:
    result, rounded = call.writes[index], cast.writes[0]
    call.rounded(index, Place(rounded.buffer, result.shape, result.stride, rounded.offset))
    call.also = (*call.also, *cast.nodes)


def _may_be_written(result: Place, cast: Operation, writers: dict[Buffer, int]) -> bool:
    """Return whether a call may write what a cast makes of its result."""
    if not _is_cast(cast) or cast.writes[0].dtype not in HALF:
        return False
    read, rounded = cast.reads[0], cast.writes[0]
    alike = all(each.contiguous and each.whole for each in (result, read, rounded))
    new = rounded.buffer.kind in (Kind.ARENA, Kind.OUTPUT) and writers[rounded.buffer] == 1
    return alike and new


def _is_read_by_calls(buffer: Buffer, readers: dict[Buffer, list[Operation]]) -> bool:
    """Return whether not only loops read a buffer: those may run on rows that are in registers."""
    users = readers.get(buffer, [])
    return buffer.kind is Kind.OUTPUT or any(not isinstance(each, Pointwise) for each in users)


def _is_cast(operation: Operation) -> bool:
    """Return whether an operation is the cast of a tensor to another type."""
    node = operation.part_of
    if not isinstance(operation, Pointwise) or node is None or node.target is not _CAST:
        return False
    return len(operation.reads) == len(operation.operands) == 1

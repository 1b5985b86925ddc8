"""Rematerialization of normalized activations in backward, from tensors that it reads anyway.

    forward:  n = (x - mean) / deviation; y = relu6(n)          writes y
    backward: n = (x - mean) / deviation; g = relu6'(n, grad);   instead of reading n
              sums(g, x)

The sums of a batch norm's backward read x, so n costs no memory traffic there, and forward need
not write it. The same holds for a ReLU of n, whose result determines its gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from abele.program.core import node_phase
from abele.targets.translation import loops
from abele.targets.translation.operations import ChannelCall, Operation, Pointwise
from abele.targets.translation.places import Buffer, Kind, Place


def rematerialize_norms(
    operations: Sequence[Operation], returned: Collection[Buffer]
) -> list[Operation]:
    """Rematerialize normalized activations in the loops of backward.

    Args:
        operations: in program order; their positions are updated.
        returned: buffers of the program's results.
    """
    users: dict[Buffer, list[Operation]] = {}
    for each in operations:
        for buffer in {place.buffer for place in (*each.reads, *each.writes)}:
            users.setdefault(buffer, []).append(each)
    ahead: dict[Operation, list[Operation]] = {}
    for made in _chains(operations, users):
        last = made[-1].result
        if last.buffer.kind is Kind.ARENA and last.buffer not in returned:
            _again(made, users[last.buffer], ahead)
    result: list[Operation] = []
    for each in operations:
        result += [*ahead.get(each, ()), each]
    for position, each in enumerate(result):
        each.position = position
    return result


def _chains(
    operations: Sequence[Operation], users: dict[Buffer, list[Operation]]
) -> Iterator[list[Pointwise]]:
    """Yield normalizations, alone and followed by a cheap function, the longest first."""
    for call in operations:
        if not isinstance(call, ChannelCall) or call.apart:
            continue
        x, (mean, deviation) = call.reads[0], call.writes[:2]
        if not any(isinstance(each, ChannelCall) and each.apart for each in users[x.buffer]):
            continue
        for normalised in users[mean.buffer]:
            if not isinstance(normalised, Pointwise) or normalised.result.size != x.size:
                continue
            read = {place.buffer for place in normalised.reads}
            if not {x.buffer, deviation.buffer} <= read or _is_gradient(normalised):
                continue
            for each in users[normalised.result.buffer]:
                if isinstance(each, Pointwise) and _is_cheap(each, normalised.result):
                    yield [normalised, each]
            yield [normalised]


def _is_cheap(operation: Pointwise, of: Place) -> bool:
    """Return whether an operation is a cheap function of a single tensor."""
    if _is_gradient(operation):
        return False
    if operation.reads != [of] or operation.result.dtype is not of.dtype:
        return False
    text = operation.expression(*("x" if isinstance(o, Place) else o for o in operation.operands))
    return not loops.functions(text)


def _is_gradient(operation: Operation) -> bool:
    return operation.part_of is not None and node_phase(operation.part_of) != "forward"


def _again(
    made: Sequence[Pointwise],
    users: Sequence[Operation],
    ahead: dict[Operation, list[Operation]],
) -> None:
    """Copy the operations that compute a buffer into the backward loops that read it.

    Args:
        made: operations that compute the buffer.
        users: operations that access it.
        ahead: receives the copies, by the operation before which they run.
    """
    readers = [each for each in users if isinstance(each, Pointwise) and _is_gradient(each)]
    if not readers:
        return
    places: dict[Place, Place] = {}
    for each in made:
        buffer = Buffer(Kind.ARENA, each.result.buffer.index, each.result.dtype, each.result.size)
        there = Place(buffer, each.result.shape, each.result.stride)
        again = dataclasses.replace(each, reads=list(each.reads), operands=list(each.operands))
        again.part_of = readers[0].part_of
        again.move(lambda place, known=dict(places): known.get(place, place))
        again.writes = [there]
        places[each.result] = there
        ahead.setdefault(readers[0], []).append(again)
    for each in readers:
        each.move(lambda place: places.get(place, place))

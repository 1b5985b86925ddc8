"""Copies that are not made, because who reads or writes a tensor can do so in another order.

    joined = copy(permute(projected))              queries, keys, values = views of projected
    queries, keys, values = views of joined   ->   seen = attend(queries, keys, values)
    seen = attend(queries, keys, values)

Attention is told the strides of its tensors. So it reads what was copied to be in another order,
and writes where its gradients would be copied to.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from abele.targets.translation.operations import Operation, Pointwise, StridedCall
from abele.targets.translation.places import Buffer, Kind, Place


def without_copies(
    operations: Sequence[Operation], returned: Collection[Buffer]
) -> list[Operation]:
    """Remove copies that no operation needs.

    Args:
        operations: in order; tensors lie where they stay.
        returned: memory of the program's results.
    """
    return _Copies(operations, returned).removed()


class _Copies:
    def __init__(self, operations: Sequence[Operation], returned: Collection[Buffer]):
        self._operations, self._returned = operations, returned
        self._readers: dict[Buffer, list[Operation]] = {}
        self._writers: dict[Buffer, list[Operation]] = {}
        for each in operations:
            self._enter(each)

    def removed(self) -> list[Operation]:
        gone: set[Operation] = set()
        for each in self._operations:
            if isinstance(each, Pointwise) and is_copy(each):
                changed = self._read_through(each) or self._written_through(each)
                if changed:
                    self._leave(each)
                    gone.add(each)
        result = [each for each in self._operations if each not in gone]
        for position, each in enumerate(result):
            each.position = position
        return result

    def _enter(self, operation: Operation) -> None:
        for users, places in ((self._readers, operation.reads), (self._writers, operation.writes)):
            for buffer in {place.buffer: None for place in places}:
                users.setdefault(buffer, []).append(operation)

    def _leave(self, operation: Operation) -> None:
        for users, places in ((self._readers, operation.reads), (self._writers, operation.writes)):
            for buffer in {place.buffer: None for place in places}:
                users[buffer].remove(operation)

    def _read_through(self, copy: Pointwise) -> bool:
        """Let the readers of a copy read what it copies."""
        source, result = copy.reads[0], copy.result
        readers = self._readers.get(result.buffer, [])
        if not (self._is_inner(source) and self._is_inner(result) and result.whole and readers):
            return False
        if self._writers[result.buffer] != [copy]:
            return False
        return self._change(copy, readers, result, source, written=False)

    def _written_through(self, copy: Pointwise) -> bool:
        """Let the writers of what is copied write where the copy goes."""
        source, result = copy.reads[0], copy.result
        writers = self._writers.get(source.buffer, [])
        if not (self._is_inner(source) and self._is_inner(result) and writers):
            return False
        makers = self._writers[result.buffer]
        made = sum(p.size for m in makers for p in m.writes if p.buffer is result.buffer)
        # Otherwise something is written twice, and has to be in this order.
        if self._readers[source.buffer] != [copy] or made != result.buffer.size:
            return False
        return self._change(copy, writers, source, result, written=True)

    def _is_inner(self, place: Place) -> bool:
        """Return whether a buffer is internal: only operations access it."""
        return place.buffer.kind is Kind.ARENA and place.buffer not in self._returned

    def _change(
        self, copy: Pointwise, users: list[Operation], old: Place, new: Place, *, written: bool
    ) -> bool:
        """Move what operations read or write in the memory of ``old`` to that of ``new``."""
        moves: list[tuple[Operation, dict[Place, Place]]] = []
        for user in users:
            places = user.writes if written else user.reads
            wanted = [place for place in places if place.buffer is old.buffer]
            others = user.reads if written else user.writes
            if any(place.buffer is old.buffer for place in others):
                return False
            seen = {place: through(place, old, new) for place in wanted}
            moved = {place: there for place, there in seen.items() if there is not None}
            if len(moved) != len(seen) or not _may_lie(user, moved):
                return False
            moves.append((user, moved))
        for user, moved in moves:
            self._leave(user)
            user.move(lambda place, moved=moved: moved.get(place, place))
            user.also = (*user.also, *copy.nodes)
            self._enter(user)
        return True


def is_copy(operation: Pointwise) -> bool:
    """Return whether an operation only copies elements of its operand."""
    (operand,) = operation.operands if len(operation.operands) == 1 else ("",)
    return (
        isinstance(operand, Place)
        and operand.dtype is operation.result.dtype is operation.types[0]
        and operand.shape == operation.result.shape
        and operation.expression("x") == "x"
    )


def through(place: Place, old: Place, new: Place) -> Place | None:
    """Return a view of ``old`` for a view of its copy ``new``; None if no strides express it.

    Args:
        place: in the memory of ``old``.
        old: of any order.
        new: of the same shape.
    """
    sizes = enumerate(zip(old.shape, old.stride, strict=True))
    dims = sorted(((s, n, d) for d, (n, s) in sizes if n > 1), reverse=True)
    if any(far < near * size for (far, _, _), (near, size, _) in itertools.pairwise(dims)):
        return None  # elements of one dimension lie between those of another, or are shared
    rest, offset = place.offset - old.offset, new.offset
    last: dict[int, int] = {}  # index of the last element, in each dimension
    for stride, _, dim in dims:
        if stride <= 0:
            return None
        last[dim], rest = divmod(rest, stride)
        offset += last[dim] * new.stride[dim]
    strides: list[int] = []
    for size, step in zip(place.shape, place.stride, strict=True):
        dim, stride = next(((d, s) for s, _, d in dims if s <= step), (-1, 1))
        times, left = divmod(step, stride)
        if size > 1 and (dim < 0 or left):
            return None
        strides.append(times * new.stride[dim] if size > 1 else 1)
        if size > 1:
            last[dim] += times * (size - 1)
    if rest or any(not 0 <= last[dim] < size for _, size, dim in dims):
        return None
    return Place(new.buffer, place.shape, tuple(strides), offset)


def _may_lie(user: Operation, moved: dict[Place, Place]) -> bool:
    """Return whether an operation accepts its tensors with any strides."""
    if isinstance(user, Pointwise):
        return is_copy(user)
    if not isinstance(user, StridedCall):
        return False
    free = [(*user.reads, *user.writes)[index] for index in user.free]
    fixed = [p for i, p in enumerate((*user.reads, *user.writes)) if i not in user.free]
    if any(place in moved for place in fixed):
        return False
    return all(place in free and user.accepts(there) for place, there in moved.items())

"""Copies that attention does without."""

from __future__ import annotations

import itertools

import pytest
import torch

from abele.targets.translation.copies import is_copy, through, without_copies
from abele.targets.translation.operations import Pointwise, StridedCall
from abele.targets.translation.places import Buffer, Kind, Place, contiguous_stride

NUMBERS = itertools.count()


def buffer(size, kind=Kind.ARENA):
    return Buffer(kind, next(NUMBERS), torch.float32, size)


def whole(shape, memory=None):
    size = torch.Size(shape).numel()
    return Place(memory or buffer(size), shape, contiguous_stride(shape))


def permuted(place, *order):
    shape, stride = (tuple(each[d] for d in order) for each in (place.shape, place.stride))
    return Place(place.buffer, shape, stride, place.offset)


def copy(source, result, expression="{0}".format):
    return Pointwise([source], [result], [source], [torch.float32], expression)


def strided(reads, writes, free=None, accepts=lambda place: place.stride[-1] == 1):
    def form(reads, writes):
        return str([place.stride for place in (*reads, *writes)])

    numbers = range(len(reads) + len(writes)) if free is None else free
    return StridedCall(reads, writes, form(reads, writes), form, frozenset(numbers), accepts)


def elements(place):
    """The number of each element in its memory."""
    memory = torch.arange(place.buffer.size)
    return memory.as_strided(place.shape, place.stride, place.offset)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_through_a_permutation(order):
    source = permuted(whole((4, 6, 10)), *order)
    result = whole(source.shape)
    copied = torch.empty(result.buffer.size, dtype=torch.int64)
    copied.as_strided(result.shape, result.stride)[...] = elements(source)
    view = copied.view(result.shape)
    for seen in (view, view[1:, 2:], view[1], view[:, ::2], view[..., 3], view.flatten()[5:6]):
        place = Place(result.buffer, tuple(seen.shape), seen.stride(), int(seen.storage_offset()))
        there = through(place, result, source)
        assert there is not None
        assert torch.equal(elements(there), seen)


def test_through_heads_that_were_joined():
    projected = whole((5, 2, 3, 4, 8))  # position, sample, kind, head, depth
    source, result = permuted(projected, 2, 0, 1, 3, 4), whole((3, 5, 2, 4, 8))
    keys = Place(result.buffer, (2, 4, 5, 8), (32, 8, 64, 1), 320)
    there = through(keys, result, source)
    assert there == Place(projected.buffer, (2, 4, 5, 8), (96, 8, 192, 1), 32)


def test_not_through_what_no_strides_say():
    source = permuted(whole((4, 6)), 1, 0)
    result = whole((6, 4))
    assert through(whole((24,), result.buffer), result, source) is None
    assert through(Place(result.buffer, (2,), (0,)), result, source) is None
    windows = Place(buffer(8), (6, 3), (1, 1))
    assert through(whole((8,), windows.buffer), windows, whole((6, 3))) is None
    part = Place(result.buffer, (2, 4), (4, 1), 4)
    assert through(result, part, whole((2, 4))) is None


def test_a_copy_is_read_where_it_came_from():
    source, made, result = whole((2, 3, 4)), whole((3, 2, 4)), whole((3, 2, 4))
    turned = permuted(source, 1, 0, 2)
    reader = strided([made], [result])
    assert without_copies([copy(turned, made), reader], set()) == [reader]
    assert reader.reads == [turned]
    assert reader.text == str([turned.stride, result.stride])


def test_a_result_is_written_where_its_copy_goes():
    made, result = whole((2, 3, 4)), whole((3, 2, 4))
    writer, reader = strided([], [made]), strided([result], [whole((1,))], free=())
    copied = copy(permuted(made, 1, 0, 2), result)
    assert without_copies([writer, copied, reader], set()) == [writer, reader]
    assert writer.writes == [permuted(result, 1, 0, 2)]


def test_several_copies_in_a_row_go():
    made = [whole((2, 4)) for _ in range(3)]
    joined, result = whole((3, 2, 4)), whole((2, 3, 4))
    parts = [Place(joined.buffer, (2, 4), (4, 1), 8 * i) for i in range(3)]
    writer = strided([], list(made))
    operations = [writer, *map(copy, made, parts), copy(permuted(joined, 1, 0, 2), result)]
    assert without_copies(operations, set()) == [writer]
    assert writer.writes == [Place(result.buffer, (2, 4), (12, 1), 4 * i) for i in range(3)]


@pytest.mark.parametrize("why", ["input", "returned", "order", "fixed", "loop", "written twice"])
def test_copies_that_stay(why):
    source = whole((2, 3, 4), buffer(24, Kind.INPUT) if why == "input" else None)
    made, result = whole((3, 2, 4)), whole((3, 2, 4))
    turned = permuted(source, 1, 0, 2)
    reader = strided([made], [result], free=() if why == "fixed" else None)
    if why == "order":
        reader.accepts = lambda place: place.contiguous
    if why == "loop":
        reader = copy(made, result, "-{0}".format)
    operations = [copy(turned, made), reader]
    if why == "written twice":
        operations.insert(1, copy(whole((2, 4)), Place(made.buffer, (2, 4), (4, 1))))
    before = list(operations)
    assert without_copies(operations, {made.buffer} if why == "returned" else set()) == before


def test_what_is_a_copy():
    one, other = whole((2, 3)), whole((2, 3))
    assert is_copy(copy(one, other))
    assert not is_copy(copy(one, other, "-{0}".format))
    assert not is_copy(copy(whole((3,)), other))
    assert not is_copy(Pointwise([], [other], ["0"], [torch.float32], "{0}".format))

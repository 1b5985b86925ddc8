"""Where values lie."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from abele.targets.translation.places import (
    Buffer,
    Kind,
    Place,
    contiguous_stride,
    is_dense,
    laid_out,
)
from helpers.emitted_places import elements, place_of
from helpers.properties import examples

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@examples(100)
@given(shape=SHAPES)
def test_contiguous_strides_are_those_of_torch(shape):
    assert contiguous_stride(shape) == torch.empty(shape).stride()


@examples(200)
@given(shape=SHAPES, seed=st.randoms(use_true_random=False))
def test_what_fills_one_piece_of_memory_is_dense(shape, seed):
    strides = tuple(seed.choice([0, 1, 2, 3, 4, 6, 8, 12]) for _ in shape)
    steps = [range(size) for size in shape]
    at = sorted(
        sum(i * s for i, s in zip(i, strides, strict=True)) for i in itertools.product(*steps)
    )
    if at:
        assert is_dense(shape, strides) == (at == list(range(len(at))))


@pytest.mark.parametrize(
    ("make", "contiguous"),
    [
        (lambda x: x, True),
        (lambda x: x.transpose(0, 1), False),
        (lambda x: x[1], True),
        (lambda x: x[:, 1], False),
        (lambda x: x[:, :1].transpose(0, 1), False),
        (lambda x: x[:1].transpose(0, 1), True),
        (lambda x: x[:1, :1].transpose(0, 1), True),
        (lambda x: x[:0], True),
    ],
)
def test_a_place_is_contiguous_where_torch_says_so(make, contiguous):
    view = make(torch.empty(2, 3, 4))
    assert place_of(view).contiguous == view.is_contiguous() == contiguous


def test_the_stride_along_one_element_says_nothing():
    place = Place(Buffer(Kind.ARENA, 0, torch.float32, 3), (1, 3), (7, 1))
    assert place.stride_is((3, 1))
    assert not place.stride_is((7, 2))


@pytest.mark.parametrize(
    ("shape", "stride", "offset", "whole"),
    [
        ((2, 3), (3, 1), 0, True),
        ((2, 3), (1, 2), 0, True),
        ((2, 3), (3, 1), 1, False),
        ((2, 2), (2, 1), 0, False),
        ((2, 3), (1, 1), 0, False),  # six elements at four places
    ],
)
def test_a_place_that_fills_its_memory_is_whole(shape, stride, offset, whole):
    buffer = Buffer(Kind.ARENA, 0, torch.float32, 6)
    assert Place(buffer, shape, stride, offset).whole == whole


def test_nothing_is_all_of_nothing():
    assert Place(Buffer(Kind.ARENA, 0, torch.float32, 0), (0, 0), (1, 1)).whole


def test_a_piece_of_a_piece_lies_in_the_memory_that_is_whole():
    whole = Buffer(Kind.ARENA, 0, torch.float32, 20)
    piece = Buffer(Kind.ARENA, 1, torch.float32, 10, inside=(whole, 4))
    inner = Buffer(Kind.ARENA, 2, torch.float32, 5, inside=(piece, 3))
    for _ in range(2):  # it is remembered
        assert Place(inner, (2,), (1,), 1).resolved() == Place(whole, (2,), (1,), 8)
        assert Place(piece, (2,), (1,), 1).resolved() == Place(whole, (2,), (1,), 5)


def test_memory_that_becomes_a_piece_later_takes_its_pieces_along():
    whole, middle, inner = (Buffer(Kind.ARENA, i, torch.float32, 20) for i in range(3))
    inner.inside = middle, 3
    assert Place(inner, (2,), (1,)).resolved() == Place(middle, (2,), (1,), 3)
    middle.inside = whole, 4
    assert Place(inner, (2,), (1,)).resolved() == Place(whole, (2,), (1,), 7)


@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (3, 1), (4,), (1,), ()])
def test_broadcast_strides_lead_to_the_elements_that_torch_reads(shape):
    view = torch.arange(torch.Size(shape).numel()).reshape(shape)
    place = place_of(view)
    wide = Place(place.buffer, (2, 3, 4), place.over((2, 3, 4)))
    assert elements(wide) == view.expand(2, 3, 4).flatten().tolist()


def test_bytes_are_those_of_the_type():
    assert Buffer(Kind.ARENA, 0, torch.int64, 3).bytes == 24
    assert Buffer(Kind.ARENA, 0, torch.bool, 3).bytes == 3


def memory(size):
    return Buffer(Kind.FOREIGN, 0, torch.float32, size)


def test_a_copy_is_laid_out_as_a_place():
    values = torch.arange(6.0).reshape(2, 3)
    turned = laid_out(values, Place(memory(6), (2, 3), (1, 2)))
    assert turned.stride() == (1, 2)
    assert torch.equal(turned, values)
    row = torch.arange(3.0).expand(4, 3).contiguous()
    repeated = laid_out(row, Place(memory(3), (4, 3), (0, 1)))
    assert repeated.stride() == (0, 1)
    assert torch.equal(repeated, row)

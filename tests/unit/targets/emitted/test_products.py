"""Factors that several products read are packed once, if nothing writes them in between."""

import torch

from abele.targets.cpu.emitted.calls.products import is_ours, packed_once, product
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Buffer, Kind, Place, contiguous_stride


def matrix(rows, columns):
    buffer = Buffer(Kind.ARENA, 0, torch.float32, rows * columns)
    return Place(buffer, (rows, columns), contiguous_stride((rows, columns)))


def new(shape, dtype):
    assert dtype is torch.float32
    return matrix(*shape)


def chain(weight, rows, count):
    """``count`` products with one right factor."""
    steps = ("0, 64, 1", "0, 70, 1")
    return [product(matrix(rows, 64), weight, matrix(rows, 70), 1, steps) for _ in range(count)]


def numbered(operations):
    for position, each in enumerate(operations):
        each.position = position
    return operations


def packs(operations):
    return [each.text.startswith("status |= abele::pack") for each in operations]


def test_a_factor_of_three_products_is_packed_before_the_first():
    weight = matrix(64, 70)
    first, *others = packed_once(numbered([*chain(weight, 32, 3)]), new)
    assert packs([first, *others]) == [True, False, False, False]
    assert first.reads == [weight]
    assert first.writes[0].shape == (64, 128)
    assert [each.reads[1] for each in others] == first.writes * 3
    assert [each.position for each in (first, *others)] == [0, 1, 2, 3]
    assert all(
        "1, 32, 70, 64, 0, 64, 1, 0, 70, 1, 2240, 70, 1, 0, 0}" in each.text for each in others
    )


def test_two_products_or_those_with_many_rows_pack_it_themselves():
    for rows, count in ((32, 2), (512, 3)):
        operations = numbered(chain(matrix(64, 70), rows, count))
        assert packed_once(operations, new) == operations


def test_a_factor_that_is_written_in_between_is_not_kept():
    weight = matrix(64, 70)
    first, *others = chain(weight, 32, 3)
    between = Call([], [weight], "")
    operations = numbered([first, between, *others])
    assert packed_once(operations, new) == operations
    assert packs(packed_once(numbered([between, first, *others]), new)).count(True) == 1


def test_small_and_narrow_products_are_the_librarys():
    assert is_ours(torch.float32, 16, 16, 16)
    assert not is_ours(torch.float64, 16, 16, 16)
    assert not is_ours(torch.float32, 15, 16, 16)
    assert not is_ours(torch.float32, 7, 512, 512)
    assert not is_ours(torch.float32, 512, 7, 512)


def test_threads_share_the_inner_dimension_of_few_rows_with_a_weight_that_stays_near():
    def shared(rows, columns, inner, count=1, turned=False):
        b = matrix(columns, inner) if turned else matrix(inner, columns)
        if turned:
            b = Place(b.buffer, b.shape[::-1], b.stride[::-1])
        steps = "0, 1, 1", "0, 1, 1"
        return product(matrix(rows, inner), b, matrix(rows, columns), count, steps).halves

    assert shared(16, 972, 100)
    assert not shared(26, 972, 100)  # not few
    assert not shared(16, 1024, 257)  # a factor of more than 1 MiB
    assert not shared(16, 100, 972, turned=True)
    assert not shared(16, 972, 100, count=2)


def test_a_packed_factor_is_not_shared_by_its_rows():
    made = chain(matrix(100, 972), 16, 3)
    assert all(each.halves for each in made)
    packed_once(numbered(made), new)
    assert not any(each.halves for each in made)
    assert all(each.described().endswith("1, 0, 0}}") for each in made)

"""GEMMs of our kernel, and the threads that share one."""

import torch

from abele.targets.cpu.emitted.calls.products import is_ours, product
from abele.targets.translation.places import Buffer, Kind, Place, contiguous_stride


def matrix(rows, columns):
    buffer = Buffer(Kind.ARENA, 0, torch.float32, rows * columns)
    return Place(buffer, (rows, columns), contiguous_stride((rows, columns)))


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

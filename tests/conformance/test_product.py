"""Our product of matrices is that of float64, for any sizes, steps and number of threads."""

import ctypes
import itertools
import math
import threading

import pytest
import torch

from abele.kernels import binding
from abele.kernels import threads as limits
from helpers.kernel_library import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER

PACKED_COLUMNS = 64
SIZES = [
    (1, 1, 1),
    (5, 3, 1),
    (14, 32, 7),
    (29, 65, 128),
    (13, 31, 193),
    (300, 33, 20),
    (64, 10, 1024),
    (17, 600, 385),
    # Few rows and a long inner dimension: a transposed b is read where it lies.
    (16, 100, 972),
    (30, 9, 257),
    (112, 21, 64),
    # Small factors are read where they lie.
    (64, 48, 33),
    (9, 128, 128),
    # Few results and a long inner dimension, along which both factors may lie.
    (96, 16, 2048),
    (7, 5, 1035),
    (1, 3, 1024),
]


def factor(count, rows, columns, *, turned, step, seed):
    """Matrices whose rows, or columns, are ``step`` elements longer than they need."""
    values = torch.randn(
        (count, columns, rows + step) if turned else (count, rows, columns + step),
        generator=torch.Generator().manual_seed(seed),
    )
    return values[..., :rows].mT if turned else values[..., :columns]


def described(a, b, packed=0, halves=0):
    (count, rows, inner), columns = a.shape, b.shape[-1]
    result = rows * columns, columns
    return binding.Product(
        count, rows, columns, inner, *a.stride(), *b.stride(), *result, packed, 0, halves
    )


def product(own, a, b, threads=1, packed=None, halves=0):
    result = torch.full((a.shape[0], a.shape[1], b.shape[2]), math.nan)
    right = b if packed is None else packed
    own.abele_product(
        ctypes.byref(described(a, b, int(packed is not None), halves)),
        *(each.data_ptr() for each in (a, right, result)),
        threads,
    )
    return result


def packed(own, b, rows, threads=1):
    inner, columns = b.shape[1:]
    result = torch.full((inner, -(-columns // PACKED_COLUMNS) * PACKED_COLUMNS), math.nan)
    sizes = binding.Product(1, rows, columns, inner, 0, 0, 1, *b.stride(), 0, columns, 0, 0, 0)
    own.abele_product_pack(ctypes.byref(sizes), b.data_ptr(), result.data_ptr(), threads)
    return result


def by_rows(own, a, b, threads, packed=None, apart=0):
    """The product as its rows came, with elements in between, and how often each of them came."""
    rows, columns = a.shape[1], b.shape[2]
    step = columns + apart
    result, times = torch.full((rows, columns), math.nan), torch.zeros(rows, dtype=torch.int64)

    def take(context, address, first, count):
        block = (ctypes.c_float * (count * step - apart)).from_address(address)
        values = torch.frombuffer(block, dtype=torch.float32)
        result[first : first + count] = values.as_strided((count, columns), (step, 1))
        times[first : first + count] += 1

    right = b if packed is None else packed
    sizes = described(a, b, int(packed is not None))
    sizes.c_next, sizes.c_row = 0, step  # there is no memory of it
    pointers = [each.data_ptr() for each in (a, right)]
    own.abele_product_by_rows(ctypes.byref(sizes), *pointers, binding.Rows(take), None, threads)
    return result, times


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("sizes", [*SIZES, (700, 300, 20), (15, 9000, 3)], ids=str)
def test_rows_come_once_with_the_bits_of_the_product(own, sizes, turned):
    rows, columns, inner = sizes
    a = factor(1, rows, inner, turned=turned, step=2, seed=5)
    b = factor(1, inner, columns, turned=1 - turned, step=1, seed=6)
    whole = product(own, a, b)[0]
    ways = (None, 0), (packed(own, b, rows), 0), (None, 16)
    for threads, (ready, apart) in itertools.product((1, 2, 3), ways):
        result, times = by_rows(own, a, b, threads, ready, apart)
        assert torch.equal(result, whole)
        assert torch.equal(times, torch.ones(rows, dtype=torch.int64))


@pytest.mark.parametrize("threads", [2, 3])
def test_others_take_the_rows_of_a_thread_that_is_held_up(own, threads):
    a = factor(1, 700, 20, turned=False, step=0, seed=5)
    b = factor(1, 20, 1024, turned=False, step=0, seed=6)
    missing, came, in_time = set(range(700)), threading.Event(), list[bool]()

    def take(_context, _address, first, count):
        missing.difference_update(range(first, first + count))
        if not missing:
            came.set()
        if first == 0:
            in_time.append(came.wait(20))

    limits.limit(limits.ALL)  # tests before may have found busy cores
    sizes = described(a, b)
    pointers = [each.data_ptr() for each in (a, b)]
    own.abele_product_by_rows(ctypes.byref(sizes), *pointers, binding.Rows(take), None, threads)
    assert in_time == [True]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("rows", "columns"), [(30, 35), (40, 48)], ids=["few rows", "small"])
def test_what_is_no_number_stays_in_its_row_or_column(own, value, turned, rows, columns):
    a = factor(1, rows, 70, turned=False, step=0, seed=7)
    b = factor(1, 70, columns, turned=turned, step=0, seed=8)
    a[0, 3, 4] = value
    b[0, 5, 34] = value
    ours = product(own, a, b)[0]
    strange = torch.zeros(rows, columns, dtype=torch.bool)
    strange[3] = strange[:, 34] = True
    assert torch.equal(~ours.isfinite(), strange)
    torch.testing.assert_close(ours, (a @ b)[0], rtol=1e-5, atol=1e-5, equal_nan=True)


def test_threads_treat_subnormal_numbers_as_the_one_that_calls(own):
    a, b = torch.full((1, 256, 256), 1e-20), torch.full((1, 256, 256), 1e-20)  # sums are 2.6e-38
    assert product(own, a, b, threads=2).all()
    torch.set_flush_denormal(True)
    try:
        assert not product(own, a, b, threads=2).any()
    finally:
        torch.set_flush_denormal(False)
    assert product(own, a, b, threads=2).all()


# -- factors and results of 16 bits ---------------------------------------------------------------

TYPES = [torch.float32, torch.float16, torch.bfloat16]
KINDS = [(1, 1, 0), (2, 2, 2), (0, 1, 1), (1, 0, 0), (0, 2, 0), (2, 0, 2), (1, 2, 1), (0, 0, 1)]


def typed(values, kind):
    """Return 16-bit values with the strides that the float32 ones have."""
    result = torch.empty_strided(values.shape, values.stride(), dtype=TYPES[kind])
    return result.copy_(values)


def test_many_threads_keep_their_memory_between_products_of_other_sizes(own):
    few, many = (factor(1, rows, 256, turned=False, step=0, seed=5) for rows in (64, 700))
    b = factor(1, 256, 512, turned=False, step=0, seed=6)
    places = set[int]()

    def take(_context, address, first, _count):
        if first == 0:
            places.add(address)

    sizes = described(many, b)
    sizes.c_next = 0
    limits.limit(1)  # the same thread computes the first row
    try:
        for _ in range(2):
            pointers = many.data_ptr(), b.data_ptr(), binding.Rows(take)
            own.abele_product_by_rows(ctypes.byref(sizes), *pointers, None, 17)
            product(own, few, b, threads=17)
    finally:
        limits.limit(limits.ALL)
    assert len(places) == 1


def typed_product(own, a, b, kinds, threads=1, apart=0):
    """The product of tensors whose types have the numbers ``kinds``."""
    a, b = typed(a, kinds[0]), typed(b, kinds[1])
    rows, columns = a.shape[1], b.shape[2]
    memory = torch.full((a.shape[0], rows, columns + apart), math.nan, dtype=TYPES[kinds[2]])
    sizes = described(a, b)
    sizes.a_type, sizes.b_type, sizes.c_type = kinds
    sizes.c_next, sizes.c_row = memory.stride()[:2]
    pointers = [each.data_ptr() for each in (a, b, memory)]
    own.abele_product(ctypes.byref(sizes), *pointers, threads)
    assert memory[..., columns:].isnan().all()
    return memory[..., :columns]


def exact_product(own, a, b, kinds):
    """The product of the values that these tensors have in their types, in float32."""
    return product(own, typed(a, kinds[0]).float(), typed(b, kinds[1]).float())


@pytest.mark.parametrize("turned", range(4))
@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_factors_of_16_bits_have_the_bits_of_their_float32_values(own, kinds, turned):
    for index, sizes in enumerate([*SIZES, (700, 300, 20), (15, 1100, 300), (150, 530, 260)]):
        rows, columns, inner = sizes
        for count in (1, 3) if rows * columns * inner < 1e5 else (1,):
            a = factor(count, rows, inner, turned=turned % 2, step=index % 3, seed=index)
            b = factor(count, inner, columns, turned=turned // 2, step=1, seed=index + 50)
            exact = exact_product(own, a, b, kinds).to(TYPES[kinds[2]])
            alone = typed_product(own, a, b, kinds, apart=index % 2)
            if kinds[:2] == (2, 2):  # multiplied in pairs where the processor can
                near = {"rtol": torch.finfo(alone.dtype).eps, "atol": 1e-4 * inner**0.5}
                torch.testing.assert_close(alone, exact, **near)
            else:
                assert torch.equal(alone, exact), (sizes, count)
            for threads in (2, 3):
                result = typed_product(own, a, b, kinds, threads, apart=index % 2)
                assert torch.equal(result, alone), (sizes, count, threads)


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("sizes", [*SIZES, (700, 300, 20), (15, 2000, 3)], ids=str)
def test_rows_of_16_bit_factors_have_the_bits_of_the_product(own, sizes, turned, kind):
    rows, columns, inner = sizes
    a = typed(factor(1, rows, inner, turned=turned, step=2, seed=5), kind)
    b = typed(factor(1, inner, columns, turned=1 - turned, step=1, seed=6), kind)
    whole = typed_product(own, a, b, (kind, kind, 0))[0]
    result = torch.full((rows, columns), math.nan)

    def take(_context, address, first, count):
        block = (ctypes.c_float * (count * columns)).from_address(address)
        values = torch.frombuffer(block, dtype=torch.float32)
        result[first : first + count] = values.view(count, columns)

    described_ = described(a, b)
    described_.c_next, described_.a_type, described_.b_type = 0, kind, kind
    pointers = a.data_ptr(), b.data_ptr(), binding.Rows(take), None, 2
    own.abele_product_by_rows(ctypes.byref(described_), *pointers)
    assert torch.equal(result, whole)


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("turned", range(4))
@pytest.mark.parametrize("sizes", [(40, 48, 70), (30, 35, 70), (150, 70, 90)], ids=str)
def test_special_numbers_of_16_bits_stay_what_they_are(own, sizes, turned, kind):
    rows, columns, inner = sizes
    a = factor(1, rows, inner, turned=turned % 2, step=0, seed=7)
    b = torch.zeros(1, inner, columns)
    small = 2.0**-24 if kind == 1 else torch.finfo(torch.bfloat16).smallest_normal
    special = [math.nan, math.inf, -math.inf, small, -small, 65504.0, 0.0, 3 * small]
    a.zero_()[0, : len(special), 3] = torch.tensor(special)
    b[0, 3] = 1.0
    b = b.mT.contiguous().mT if turned // 2 else b
    kinds = kind, kind, kind
    result, exact = typed_product(own, a, b, kinds), exact_product(own, a, b, kinds)
    assert torch.equal(result[0, : len(special), 0].isnan(), torch.tensor(special).isnan())
    assert result[0, 3:8, -1].tolist() == typed(a, kind)[0, 3:8, 3].tolist()
    torch.testing.assert_close(result.float(), exact, rtol=0.01, atol=0, equal_nan=True)


def test_results_of_16_bits_are_rounded_to_nearest_even(own):
    values = torch.tensor([1 + 2**-11, 1 + 3 * 2**-11, 65519.0, 65520.0, 2**-25, 3 * 2**-26])
    a, b = values.repeat(4, 1)[None], torch.eye(6)[None]
    result = typed_product(own, a, b, (0, 0, 1))
    assert torch.equal(result[0], values.half().expand(4, 6))

"""The tables of the kernels' self-test are complete, and see what differs; no compiler."""

import ctypes
import math

import pytest
import torch

from abele.errors import CorruptExecutable
from abele.kernels import binding, self_test, sources
from abele.kernels.cases import TABLES
from abele.kernels.cases.case import (
    Case,
    call,
    few_threads,
    first_problem,
    numbers,
    threads_of,
    unwritten,
)

WIDE = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)


def test_each_function_has_a_table():
    """Those that count threads compute nothing: any count gives right results."""
    tested = [function for tables in TABLES.values() for function in tables]
    computing = {name for name in binding.SIGNATURES if not name.endswith("_threads")}
    assert len(tested) == len(set(tested))
    assert set(tested) == computing


def test_the_sources_of_each_kind_are_known():
    assert set(TABLES) == set(sources.KINDS) - {"threads"}
    assert set(self_test._SIGNS) == set(TABLES)
    assert all(function in TABLES[kind] for kind, function in self_test._SIGNS.items())
    assert {source for kind in TABLES for source in sources.KINDS[kind]} == set(sources.KERNELS)


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ([1.0, -2.0, 3.0], None),
        ([1.0, -2.0, 3.0 + 1e-6], None),
        (
            [1.0, -2.0, 3.0 + 1e-3],
            r"off by 1\.0e-03 where numbers are up to 3\.0e\+00 \(for rows 3",
        ),
        ([1.0, math.nan, 3.0], r"it wrote no number where"),
        ([1.0, -2.0, math.inf], "off by inf"),
    ],
)
def test_the_precision_of_the_type_decides(result, problem):
    found = Case({"rows": 3}, [torch.tensor(result)], [WIDE]).problem()
    if problem is None:
        assert found is None
    else:
        with pytest.raises(AssertionError, match=problem):
            raise AssertionError(found)


def test_a_kernel_that_cannot_be_tested_has_not_passed():
    def failing(library):
        yield Case({}, [torch.ones(1)], [torch.ones(1, dtype=torch.float64)])
        raise MemoryError("no memory for sums")

    assert (
        first_problem(failing, None) == "it could not be called (MemoryError: no memory for sums)"
    )


@pytest.mark.parametrize("wrong", [False, True])
def test_sizes_after_one_without_code_are_tested(wrong):
    def kernel(size, address):
        if size == 2:
            raise CorruptExecutable("no code")
        torch.frombuffer((ctypes.c_float * size).from_address(address), dtype=torch.float32).fill_(
            2.0 if wrong and size == 3 else 1.0
        )

    def table(library):
        for size in (1, 2, 3):
            result = unwritten((size,))
            call(kernel, size, *result)
            yield Case({"size": size}, result, [torch.ones(size, dtype=torch.float64)])

    found = first_problem(table, None)
    assert found is None if not wrong else found.endswith("(for size 3)")


def test_numbers_do_not_depend_on_the_program():
    expected, state = numbers(5, seed=3), torch.get_rng_state()
    torch.manual_seed(9)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            assert torch.equal(numbers(5, seed=3), expected)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.set_rng_state(state)


@pytest.mark.parametrize(("threads", "most"), [(1, 1), (2, 2), (4, 2)])
def test_kernels_get_no_more_threads_than_the_program_has(threads, most):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with few_threads():
            assert torch.get_num_threads() == 1
            assert {threads_of(index) for index in range(40)} == {1, most}
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)

"""Norms, softmax and sums of the library beyond the self-test: accuracy, NaN and long sums."""

import math

import pytest
import torch
from torch.nn import functional

from abele.kernels import binding
from helpers.kernel_library import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER

THREADS = (1, 2, 3)
EPS = 1e-5


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def computed(function, before, reads, *shapes):
    """What a function of the library writes, which is the same with any number of threads."""
    several = []
    for threads in THREADS:
        results = [torch.full(shape, math.nan) for shape in shapes]
        pointers = [None if each is None else each.data_ptr() for each in (*reads, *results)]
        function(*before, *pointers, threads)
        several.append(results)
    for others in several[1:]:
        torch.testing.assert_close(others, several[0], rtol=0, atol=0, equal_nan=True)
    return several[0]


def close(results, *exact):
    for mine, theirs in zip(results, exact, strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=2e-5, atol=2e-5)


def test_layer_norms_of_numbers_far_from_zero_are_as_accurate_as_torchs(own):
    x = torch.randn(512, 300, generator=torch.Generator().manual_seed(0)) * 3 + 50
    y, *_ = computed(
        own.abele_layer_norm, (0, 512, 300, EPS), (x, None, None), x.shape, (512,), (512,)
    )
    exact = functional.layer_norm(x.double(), (300,), eps=EPS)
    errors = [(each - exact).norm() for each in (y, functional.layer_norm(x, (300,), eps=EPS))]
    assert errors[0] <= errors[1]


def test_a_layer_norm_of_one_element_is_zero(own):
    x = torch.randn(50, 1, generator=torch.Generator().manual_seed(0)) + 7
    y, *_ = computed(own.abele_layer_norm, (0, 50, 1, EPS), (x, None, None), x.shape, (50,), (50,))
    assert not y.any()


def test_running_statistics_may_be_written_nowhere(own):
    def function(*given):
        own.abele_channel_statistics(0, 10, *given[:-1], None, None)

    shape, channels = (3, 10, 5), (10,)
    x = torch.randn(shape) + 3
    results = computed(function, (*shape, EPS, 0.25), (x, None, None), channels, channels)
    wide = x.double()
    close(results, wide.mean((0, 2)), (wide.var((0, 2), correction=0) + EPS).rsqrt())


@pytest.mark.parametrize("size", [5, 40])
@pytest.mark.parametrize("kind", [0, 2])
def test_softmax_of_a_row_with_nan_is_nan_and_others_stay(own, size, kind):
    x = torch.randn(3, size)
    x[1, 2] = math.nan
    (y,) = computed(own.abele_softmax, (kind, 3, size, 1), (x,), (3, size))
    assert y[1].isnan().all()
    assert torch.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("norm", [0, 1])
def test_sums_and_norms_of_many_rows(own, norm, split):
    outer, rows, columns = shape = (2, 1000, 130)
    x, one = torch.randn(shape), binding.Dim(1, 0, 0)
    exact = torch.linalg.vector_norm if norm else torch.sum
    of_outer = binding.Dim(outer, rows * columns, columns)
    dims = (of_outer, binding.Dim(columns, 1, 1), one, binding.Dim(rows, columns, 0))
    sums = computed(own.abele_sum_columns, (split, norm, *dims, 0.5), (x,), (outer, columns))
    close(sums, 0.5 * exact(x.double(), dim=1))
    dims = (one, binding.Dim(outer, rows * columns, 1), one, binding.Dim(rows * columns, 1, 0))
    sums = computed(own.abele_sum_rows, (split, norm, *dims, 1.0), (x,), (outer,))
    close(sums, exact(x.double(), dim=(1, 2)))

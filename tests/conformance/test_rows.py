"""Norms, softmax, losses and sums of the library: those of float64, with any number of threads."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from abele.kernels import binding
from helpers.kernel_library import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER

THREADS = (1, 2, 3)
# Blocks of 16 lanes and 64 columns with and without a rest, rows that do not divide among threads.
ROWS = [(1, 1), (3, 5), (7, 64), (5, 130), (33, 257), (2, 1000)]
AROUND = [(5, 7, 1), (4, 33, 1), (3, 10, 5), (2, 6, 130)]  # outer, size, inner
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


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("rows", "size"), ROWS)
def test_layer_norms(library, rows, size, weighted):
    x, grad = torch.randn(rows, size), torch.randn(rows, size)
    weight, bias = (torch.rand(size) if weighted else None for _ in (0, 1))
    shape, before = (rows, size), (int(weighted), rows, size)
    y, mean, rstd = computed(
        library.abele_layer_norm, (*before, EPS), (x, weight, bias), shape, (rows,), (rows,)
    )
    inner = x.double().requires_grad_()
    weights = [each.double().requires_grad_() for each in (weight, bias) if each is not None]
    exact = functional.layer_norm(inner, (size,), *(weights or (None, None)), EPS)
    close([y], exact)
    exact.backward(grad.double())
    reads = (grad, x, mean, rstd, weight)
    close(computed(library.abele_layer_norm_backward, before, reads, shape), inner.grad)
    if weighted:
        sums = computed(
            library.abele_layer_norm_weights, (rows, size), reads[:-1], (size,), (size,)
        )
        close(sums, *(each.grad for each in weights))


def test_layer_norms_of_numbers_far_from_zero_are_as_accurate_as_torchs(library):
    x = torch.randn(512, 300, generator=torch.Generator().manual_seed(0)) * 3 + 50
    y, *_ = computed(
        library.abele_layer_norm, (0, 512, 300, EPS), (x, None, None), x.shape, (512,), (512,)
    )
    exact = functional.layer_norm(x.double(), (300,), eps=EPS)
    errors = [(each - exact).norm() for each in (y, functional.layer_norm(x, (300,), eps=EPS))]
    assert errors[0] <= errors[1]


def test_a_layer_norm_of_one_element_is_zero(library):
    x = torch.randn(50, 1, generator=torch.Generator().manual_seed(0)) + 7
    y, *_ = computed(
        library.abele_layer_norm, (0, 50, 1, EPS), (x, None, None), x.shape, (50,), (50,)
    )
    assert not y.any()


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("shape", "groups"), [((2, 6, 130), 3), ((3, 4, 5), 1), ((1, 3, 7), 3)])
def test_group_norms(library, shape, groups, masked):
    x, grad = torch.randn(shape).relu(), torch.randn(shape)
    weight, bias = torch.rand(shape[1]), torch.rand(shape[1])
    sizes, statistics = (*shape, groups), (shape[0] * groups,)
    y, mean, rstd = computed(
        library.abele_group_norm, (*sizes, EPS), (x, weight, bias), shape, statistics, statistics
    )
    inner, scale = x.double().requires_grad_(), weight.double().requires_grad_()
    exact = functional.group_norm(inner, groups, scale, bias.double(), EPS)
    close([y], exact)
    exact.backward(grad.double())
    reads = (grad, x, mean, rstd, weight)
    function, before = library.abele_group_norm_backward, (int(masked), *sizes)
    grad_x, sums = computed(function, before, reads, shape, (*shape[:2], 2))
    close([grad_x], inner.grad * (x > 0) if masked else inner.grad)
    close(sums.sum(0).unbind(1), grad.sum((0, 2)), scale.grad)


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("shape", [(4, 33, 1), (3, 10, 5), (2, 6, 1300), (5, 70, 1)])
def test_batch_norms(library, shape, running):
    x, grad, momentum = torch.randn(shape) + 3, torch.randn(shape), 0.25
    channels = (shape[1],)
    old = [torch.rand(channels) if running else None for _ in (0, 1)]
    written = [channels] * (4 if running else 2)
    function, before = library.abele_batch_statistics, (*shape, EPS, momentum)
    if not running:

        def function(*given):  # writes the running statistics nowhere
            library.abele_batch_statistics(*given[:-1], None, None, given[-1])

    mean, rstd, *news = computed(function, before, (x, *old), *written)
    news_exact = [None if each is None else each.double() for each in old]
    inner, scale = x.double().requires_grad_(), torch.ones(channels).double().requires_grad_()
    exact = functional.batch_norm(
        inner, *news_exact, scale, training=True, momentum=momentum, eps=EPS
    )
    var = inner.detach().var((0, 2), correction=0)
    close([mean, rstd], inner.detach().mean((0, 2)), (var + EPS).rsqrt())
    close(news, *(news_exact if running else []))
    exact.backward(grad.double())
    sums = computed(library.abele_batch_norm_sums, shape, (grad, x, mean, rstd), channels, channels)
    close(sums, scale.grad, grad.double().sum((0, 2)))


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("shape", AROUND)
def test_softmax(library, shape, log):
    x, grad = torch.randn(shape) * 10, torch.randn(shape)
    (y,) = computed(library.abele_softmax, (int(log), *shape), (x,), shape)
    inner = x.double().requires_grad_()
    exact = (functional.log_softmax if log else functional.softmax)(inner, 1)
    close([y], exact)
    exact.backward(grad.double())
    grads = computed(library.abele_softmax_backward, (int(log), *shape), (grad, y), shape)
    close(grads, inner.grad)


@pytest.mark.parametrize("size", [5, 40])
def test_softmax_of_a_row_with_nan_is_nan_and_others_stay(library, size):
    x = torch.randn(3, size)
    x[1, 2] = math.nan
    (y,) = computed(library.abele_softmax, (0, 3, size, 1), (x,), (3, size))
    assert y[1].isnan().all()
    assert torch.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", AROUND)
def test_gradients_of_labels(library, shape, reduction, weighted):
    outer, size, inner = shape
    x = torch.randn(shape, dtype=torch.float64).requires_grad_()
    target = torch.randint(0, size, (outer, inner))
    target[0, 0] = -100  # is ignored
    weights = torch.rand(size) + 0.5 if weighted else None
    wide = None if weights is None else weights.double()
    loss = functional.nll_loss(x, target, wide, reduction=reduction)
    grad = torch.rand(loss.shape)
    loss.backward(grad.double())
    of_each = torch.ones(size) if weights is None else weights
    total = of_each[target[target >= 0]].sum()
    kind = ("none", "mean", "sum").index(reduction)
    reads = (grad, target, weights, total)
    before = (kind, *shape, -100)
    close(computed(library.abele_nll_loss_backward, before, reads, shape), x.grad)


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("shape", [(1, 7, 5), (3, 40, 64), (2, 1000, 130), (1, 33, 3)])
def test_sums(library, shape, split):
    outer, rows, columns = shape
    x, one = torch.randn(shape), binding.Dim(1, 0, 0)
    of_outer = binding.Dim(outer, rows * columns, columns)
    dims = (of_outer, binding.Dim(columns, 1, 1), one, binding.Dim(rows, columns, 0))
    sums = computed(library.abele_sum_columns, (split, *dims, 0.5), (x,), (outer, columns))
    close(sums, 0.5 * x.double().sum(1))
    dims = (one, binding.Dim(outer, rows * columns, 1), one, binding.Dim(rows * columns, 1, 0))
    close(
        computed(library.abele_sum_rows, (split, *dims, 1.0), (x,), (outer,)),
        x.double().sum((1, 2)),
    )


@pytest.mark.parametrize("width", [1, 16, 50])
def test_rows_of_a_table_get_the_gradients_of_who_read_them(library, width):
    size, rows, grad = 9, torch.randint(0, 9, (40,)), torch.randn(40, width)
    expected = torch.zeros(size, width, dtype=torch.float64)
    expected.index_add_(0, rows[rows != 4], grad[rows != 4].double())  # 4 is padding
    before = (40, width, size, 4)
    close(computed(library.abele_embedding_backward, before, (grad, rows), (size, width)), expected)

"""Results that are stated are those that kernels give, and what is not certain is left to torch."""

import pytest
import torch

from abele import _torch
from abele.trace.known_results import _KNOWN, results_of

aten = torch.ops.aten
LAST, FIRST = torch.channels_last, torch.contiguous_format
SPLITS = ["split first", "split last"]
LAYOUTS = ["first", "last", "view", "one channel", "one pixel", "expanded", "transposed", "vectors"]
LAYOUTS += SPLITS


def _images(layout, dtype):
    x = torch.randn(2, 4, 6, 8, dtype=dtype)
    return {
        "first": x,
        "last": x.contiguous(memory_format=LAST),
        "view": torch.randn(3, 4, 6, 8, dtype=dtype)[1:],
        "split first": torch.randn(2, 7, 6, 8, dtype=dtype)[:, 2:6],
        "split last": torch.randn(2, 7, 6, 8, dtype=dtype).contiguous(memory_format=LAST)[:, 2:6],
        "one channel": x[:, :1],
        "one pixel": x[:, :, :1, :1],
        "expanded": x[:1, :1].expand(2, 4, 6, 8),
        "transposed": x.transpose(2, 3),
        "vectors": x[:, :, 0, 0].contiguous(),
    }[layout]


def _norm(x):
    vectors = [torch.rand(x.shape[1], dtype=x.dtype) for _ in range(4)]
    return (x, *vectors, True, 0.1, 1e-5)


def _norm_backward(x):
    vectors = [torch.rand(x.shape[1], dtype=x.dtype) for _ in range(5)]
    return (torch.empty_like(x), x, *vectors, True, 1e-5, [True, True, True])


CALLS = {
    aten._native_batch_norm_legit.default: _norm,
    aten._native_batch_norm_legit_functional.default: _norm,
    aten.native_batch_norm_backward.default: _norm_backward,
    aten.upsample_bilinear2d.default: lambda x: (x, [5, 12], False),
    aten.leaky_relu_backward.default: lambda x: (torch.empty_like(x), x, 0.1, False),
}

CASES = [
    pytest.param(function, layout, id=f"{function}, {layout}")
    for function in CALLS
    for layout in LAYOUTS
    if layout != "vectors" or function is not aten.upsample_bilinear2d.default
]


def _facts(results):
    results = results if isinstance(results, tuple) else (results,)
    return [(each.dtype, each.shape, each.stride(), each.device.type) for each in results]


def _asked(function, args):
    """What ``results_of`` says, without data, and whether that was left to torch."""
    with _torch.static_fakes() as mode:
        fakes = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in args]
        stated = _KNOWN[function](*fakes)
        return _facts(results_of(function, fakes)), stated is None


def test_all_are_tested():
    assert set(CALLS) | {aten.select.int} == set(_KNOWN)


@pytest.mark.parametrize("layout", ["first", "last", "view", "expanded", "transposed"])
@pytest.mark.parametrize(("dim", "index"), [(0, 1), (1, -1), (-1, 3), (2, 0)])
def test_a_selected_row_is_a_view_where_the_kernel_has_it(layout, dim, index):
    x = _images(layout, torch.bfloat16)
    real = aten.select.int(x, dim, index)
    with _torch.static_fakes() as mode:
        fake = mode.from_tensor(x)
        row = _KNOWN[aten.select.int](fake, dim, index)
    assert _facts(row) == _facts(real)
    assert row.storage_offset() == real.storage_offset()
    assert _torch.memory_of(row) == _torch.memory_of(fake)


@pytest.mark.parametrize(("dim", "index"), [(2, 0), (0, 2), (0, -3)])
def test_rows_that_are_not_there_are_refused_by_torch(dim, index):
    with pytest.raises(IndexError, match="out of range"):
        _asked(aten.select.int, (torch.ones(2, 3), dim, index))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("function", "layout"), CASES)
def test_stated_results_are_those_of_kernels(function, layout, dtype):
    args = CALLS[function](_images(layout, dtype))
    facts, left_to_torch = _asked(function, args)
    stated = ["first", "last", "view", "vectors"]
    stated += ["split first"] * (function is aten.upsample_bilinear2d.default)
    plain = layout in stated and dtype is not torch.bfloat16
    assert left_to_torch == (not plain)
    if plain:
        assert facts == _facts(function(*args))


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (
            aten._native_batch_norm_legit.default,
            (*_norm(torch.ones(2, 3, 4, 4))[:5], False, 0.1, 0),
        ),
        (
            aten.native_batch_norm_backward.default,
            (*_norm_backward(torch.ones(2, 3, 4, 4))[:9], [False, True, True]),
        ),
        (aten.leaky_relu_backward.default, (torch.ones(3), torch.ones(2, 3), 0.1, False)),
    ],
    ids=["evaluation", "not all gradients", "broadcast"],
)
def test_other_cases_are_left_to_torch(function, args):
    assert _asked(function, args)[1]


def test_sizes_that_torch_refuses_stay_refused():
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        _asked(aten.upsample_bilinear2d.default, (torch.ones(1, 2, 4, 4), [0, 4], False))

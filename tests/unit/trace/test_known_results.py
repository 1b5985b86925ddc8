"""Results that are stated are those that kernels give, and what is not certain is left to torch."""

import pytest
import torch

from abele import _torch
from abele.trace.fake_results import _KNOWN, stated_results

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
    """What ``stated_results`` says, without data, and whether that was left to torch."""
    with _torch.static_fakes() as mode:
        fakes = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in args]
        stated = _KNOWN[function](*fakes)
        return _facts(stated_results(function, fakes)), stated is None


VIEWS = {
    aten.detach.default: [()],
    aten.expand.default: [([3, -1, -1, -1, -1],), ([2, -1, -1, -1],)],
    aten.permute.default: [([0, 2, 3, 1],), ([-1, 0, 2, 1],)],
    aten.select.int: [(0, 1), (1, -1), (-1, 3), (2, 0)],
    aten.slice.Tensor: [(2, 1, 5, 2), (3, -4), (0, 1, None)],
    aten.squeeze.dim: [(1,), (-2,)],
    aten.t.default: [()],
    aten.transpose.int: [(0, 1), (-1, 2)],
    aten.unsqueeze.default: [(0,), (-1,)],
    aten.view.default: [([-1, 8],), ([2, 24, 8],), ([2, 4, 48],), ([96, 1, 4],)],
}
VIEW_CASES = [(view, settings) for view, all_settings in VIEWS.items() for settings in all_settings]


def test_all_are_tested():
    assert {*CALLS, *VIEWS} == set(_KNOWN)


@pytest.mark.parametrize("layout", ["first", "last", "view", "expanded", "transposed"])
@pytest.mark.parametrize(("view", "settings"), VIEW_CASES)
def test_views_lie_where_the_kernel_puts_them(layout, view, settings):
    x = _images(layout, torch.bfloat16)
    x = x[1, 1] if view is aten.t.default else x
    with _torch.static_fakes() as mode:
        fake = mode.from_tensor(x)
        stated = _KNOWN[view](fake, *settings)
    if stated is None:
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            view(x, *settings)
        return
    real = view(x, *settings)
    assert _facts(stated) == _facts(real)
    assert stated.storage_offset() == real.storage_offset()
    assert _torch.memory_of(stated) == _torch.memory_of(fake)
    assert stated.fake_mode is mode


def test_views_of_complex_numbers_and_constants_are_left_to_torch():
    assert _asked(aten.t.default, (torch.ones(2, 3, dtype=torch.complex64),))[1]
    with _torch.static_fakes() as mode:
        fake = mode.from_tensor(torch.ones(2))
        assert _KNOWN[aten.detach.default](fake) is not None
        fake.constant = torch.ones(2)
        assert _KNOWN[aten.detach.default](fake) is None


REFUSED = [
    (aten.select.int, (2, 0), IndexError, "out of range"),
    (aten.select.int, (0, 2), IndexError, "out of range"),
    (aten.select.int, (0, -3), IndexError, "out of range"),
    (aten.view.default, ([4, 2],), RuntimeError, "shape '\\[4, 2\\]' is invalid"),
    (aten.expand.default, ([2, 5],), RuntimeError, "expand"),
]


@pytest.mark.parametrize(("view", "settings", "kind", "words"), REFUSED)
def test_views_that_are_not_there_are_refused_by_torch(view, settings, kind, words):
    with pytest.raises(kind, match=words):
        _asked(view, (torch.ones(2, 3), *settings))


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

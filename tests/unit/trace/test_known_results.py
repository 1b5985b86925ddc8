"""Results that are stated are those that kernels give, and what is not certain is left to torch."""

import pytest
import torch

from abele import _torch
from abele.trace.fake_results import _KNOWN, stated_results

aten = torch.ops.aten
LAST, FIRST = torch.channels_last, torch.contiguous_format
LAYOUTS = ["first", "last", "view", "one channel", "one pixel", "expanded", "transposed", "vectors"]


def _images(layout, dtype):
    x = torch.randn(2, 4, 6, 8, dtype=dtype)
    return {
        "first": x,
        "last": x.contiguous(memory_format=LAST),
        "view": torch.randn(3, 4, 6, 8, dtype=dtype)[1:],
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
}

CASES = [
    pytest.param(function, layout, id=f"{function}, {layout}")
    for function in CALLS
    for layout in LAYOUTS
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


def test_all_are_tested():
    assert set(CALLS) == set(_KNOWN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("function", "layout"), CASES)
def test_stated_results_are_those_of_kernels(function, layout, dtype):
    args = CALLS[function](_images(layout, dtype))
    facts, left_to_torch = _asked(function, args)
    plain = layout in ["first", "last", "view", "vectors"]
    assert left_to_torch == (not plain)
    if plain and dtype is not torch.bfloat16:
        assert facts == _facts(function(*args))
    elif plain:  # kernels round running statistics, traces do not
        with _torch.static_fakes() as mode:
            fakes = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in args]
            assert facts == _facts(function(*fakes))


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
    ],
    ids=["evaluation", "not all gradients"],
)
def test_other_cases_are_left_to_torch(function, args):
    assert _asked(function, args)[1]

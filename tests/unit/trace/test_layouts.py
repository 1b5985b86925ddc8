"""Results of operators on tensors without data are kept by the layouts of the arguments."""

import pytest
import torch

from abele import _torch
from abele.trace.layouts import Results

aten = torch.ops.aten


@pytest.fixture
def ask():
    """Asks an operator through one ``Results``; says what it returned and whether it was run."""
    results, ran = Results(), []

    def asked(target, *args, **kwargs):
        def counted(*args, **kwargs):
            ran.append(target)
            return target(*args, **kwargs)

        counted = counted_by.setdefault(target, counted)
        before = len(ran)
        with _torch.static_fakes():
            return results.of(counted, args, kwargs), len(ran) > before

    counted_by = {}
    return asked


def _empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def test_equal_layouts_are_asked_once(ask):
    first, ran = ask(aten.add.Tensor, _empty(2, 3), _empty(3))
    assert ran
    again, ran = ask(aten.add.Tensor, _empty(2, 3), _empty(3))
    assert again is first
    assert not ran


@pytest.mark.parametrize(
    "other",
    [
        (_empty(3, 3), 1.0),
        (_empty(3, 2).t(), 1.0),
        (_empty(2, 3, dtype=torch.float64), 1.0),
        (_empty(3, 3)[1:], 1.0),
        (_empty(2, 3), 1),
        (_empty(2, 3), -1.0),
        (_empty(2, 3), True),
    ],
)
def test_whatever_can_matter_is_asked_again(ask, other):
    ask(aten.mul.Scalar, _empty(2, 3), 1.0)
    result, ran = ask(aten.mul.Scalar, *other)
    assert ran
    plain = aten.mul.Scalar(*other)
    assert (result.dtype, result.shape, result.stride()) == (
        plain.dtype,
        plain.shape,
        plain.stride(),
    )


def test_zeros_of_different_sign_are_different(ask):
    ask(aten.mul.Scalar, _empty(2), 0.0)
    assert ask(aten.mul.Scalar, _empty(2), -0.0)[1]


def test_arguments_that_are_not_understood_are_asked_about_every_time(ask):
    for _ in range(2):
        assert ask(aten.mul.Tensor, _empty(2, dtype=torch.complex64), _empty(2))[1]

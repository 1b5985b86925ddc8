"""Results of operators on tensors without data are kept by the layouts of the arguments."""

import enum

import pytest
import torch

from abele import _torch
from abele.trace.fake_results import Results, UnknownError, key_of_call

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


def _key(*args, **kwargs):
    return key_of_call(aten.add.Tensor, args, kwargs)


def test_equal_arguments_have_equal_keys():
    one, other = (
        _key(_empty(2), [1, (2.5, None)], alpha=float("nan"), dtype=torch.int8) for _ in range(2)
    )
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, 1.0), (0, None), ([1], (1,)), ([1, 2], [[1], 2]), ("1", 1), (0.0, -0.0)],
)
def test_arguments_that_compare_equal_or_look_alike_have_other_keys(one, other):
    assert _key(one) != _key(other)
    assert _key(alpha=one) != _key(alpha=other)


def test_a_name_makes_a_difference():
    assert _key(alpha=1) != _key(beta=1) != _key(1)


def test_another_operator_makes_a_difference():
    assert _key(1) != key_of_call(aten.sub.Tensor, (1,), {})


class _Mode(enum.IntEnum):
    FAST = 1


class _Carrier(float):
    """A number with a tensor, as cumulative batch norms have for their momentum."""


@pytest.mark.parametrize("argument", [_Mode.FAST, _Carrier(1.0), object(), {"a": 1}])
def test_what_may_be_more_than_its_value_has_no_key(argument):
    with pytest.raises(UnknownError):
        _key([argument])


def test_tensors_are_asked_for_in_the_order_of_arguments():
    first, second, third = _empty(1), _empty(2), _empty(3)
    shapes = []
    args, kwargs = (first, [second]), {"out": third}
    key_of_call(aten.add.Tensor, args, kwargs, lambda tensor: shapes.append(tuple(tensor.shape)))
    assert shapes == [(1,), (2,), (3,)]

"""What counts as rounding, and what does not."""

import math

import pytest
import torch

from abele.differences.answer import error, spread

TRUTH = torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64)


def test_norms_are_relative_to_float64s():
    made = spread(TRUTH, TRUTH.float(), TRUTH * 1.5)
    assert made.scale == pytest.approx(math.sqrt(14))
    assert (made.first, made.relative(made.second)) == (0, pytest.approx(0.5))
    assert made.elements == (3, 3)
    assert made.parted(0.1)
    assert not made.parted(0.6)


def test_as_much_as_rounding_is_allowed():
    made = spread(TRUTH, TRUTH * 1.001, TRUTH * 0.995)
    assert not made.parted(1e-5)  # a tenth of ten times what rounding makes
    assert spread(TRUTH, TRUTH * 1.001, TRUTH * 0.98).parted(1e-5)


def test_what_is_nothing_but_rounding_never_parts():
    noise = torch.tensor([1e-9, -2e-9])
    zero = torch.zeros(2, dtype=torch.float64)
    assert not spread(zero, noise, torch.tensor([1e-3, 1e-3])).parted(1e-5)


def test_a_zero_that_rounding_keeps_does():
    zero = torch.zeros(2, dtype=torch.float64)
    assert spread(zero, zero.float(), torch.tensor([1e-3, 1e-3])).parted(1e-5)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite_parts(value):
    other = torch.tensor([1.0, value, -3.0])
    made = spread(TRUTH, TRUTH.float(), other)
    assert made.parted(1.0)
    assert made.relative(made.second) == error(TRUTH, other) == math.inf
    assert not spread(other.double(), other, other).parted(1e-5)


def test_booleans_and_integers_are_counted():
    truth = torch.tensor([True, False, True, True])
    other = torch.tensor([True, True, True, True])
    made = spread(truth, truth, other)
    assert made.elements == (1, 4)
    assert made.parted(1e-5)


def test_complex_numbers_have_two_parts():
    truth = torch.tensor([1 + 1j], dtype=torch.complex128)
    assert spread(truth, truth, truth * 1j).apart == pytest.approx(2)

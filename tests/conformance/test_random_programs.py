"""Random programs give the bits of plain PyTorch, or are refused by name.

``ABELE_RANDOM_PROGRAMS=5000`` tries that many instead of a few.
"""

import os
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from abele.errors import CaptureError
from helpers.properties import examples
from helpers.random_programs import Model, program, rows
from helpers.runs import assert_same_bits, rule_for, run, run_eagerly, started

COUNT = int(os.environ.get("ABELE_RANDOM_PROGRAMS", "25"))
CALLS = 3


class Resetting(Model):
    """Plain PyTorch with the plain tensors that a program would see in each call."""

    def forward(self, x, y):
        self.reset()
        return super().forward(x, y)


@pytest.fixture(autouse=True)
def _expected_warnings():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "forward changes a tensor in place")
        warnings.filterwarnings("ignore", "Training follows mse_loss")
        yield


def outcome(source, *, training):
    """Compares a program with plain PyTorch; whether it agreed, was refused, or means nothing."""
    plain, module = Resetting(source), Model(source)
    batches = [rows(seed) for seed in range(1, 1 + CALLS)]
    copies = [[tensor.clone() for tensor in batch] for batch in batches]
    try:
        if training:
            optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
            expected = run_eagerly(plain, optimizer, copies)
        else:
            expected = None
            with torch.no_grad():
                outputs = [[each.clone() for each in plain(*batch)] for batch in copies]
    except RuntimeError:
        return "nothing"  # autograd refuses it in plain PyTorch, too
    first = Resetting(source)
    with torch.set_grad_enabled(training):
        first(*rows(1))
    before, after = module.plain_tensors(), first.plain_tensors()
    try:
        session, _ = started(module, batches[0], rule_for(module) if training else None)
    except CaptureError:
        return "refused"
    actual = run(session, batches)
    if expected is not None:
        assert_same_bits(actual, expected)
    else:
        for left, right in zip(actual.outputs, outputs, strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(
            actual.buffers["total"], plain.total, rtol=0, atol=0, equal_nan=True
        )
    for now, unchanged, changed in zip(module.plain_tensors(), before, after, strict=True):
        left = torch.equal(now, unchanged) or torch.allclose(now, changed, 0, 0, equal_nan=True)
        assert left, "a plain tensor is neither as it was nor as forward leaves it"
    return "same"


@examples(COUNT)
@given(seed=st.integers(0, 2**32), length=st.integers(1, 24), training=st.booleans())
def test_random_programs_agree_with_plain_pytorch(seed, length, training):
    outcome(program(seed, length), training=training)


def test_most_random_programs_mean_something():
    result = [outcome(program(seed, 12), training=bool(seed % 2)) for seed in range(6)]
    assert result.count("same") >= 2, result

"""Random programs of all types: the bits of plain PyTorch, and compiled the same integers.

``benchmarks/random_programs.py --types`` runs more of them. ``ABELE_RANDOM_TYPES=400`` tries that
many here.
"""

from __future__ import annotations

import os

import pytest
import torch

from helpers.random_types import INPUTS
from helpers.typed_agreement import TypedAgreement, same_bits

COUNT = int(os.environ.get("ABELE_RANDOM_TYPES", "6"))


def test_interpreted_programs_of_all_types_give_the_bits_of_plain_pytorch():
    agreement = TypedAgreement()
    agreement.run(range(COUNT), compiled=False)
    assert not agreement.wrong
    assert agreement.counts["tried"] == COUNT
    assert agreement.counts["interpreted"] > COUNT // 2, agreement.refused
    assert set(map(str, INPUTS)) <= agreement.types.keys()


@pytest.mark.compiler
def test_compiled_programs_of_all_types_compute_what_is_interpreted():
    agreement = TypedAgreement()
    agreement.run(range(1000, 1000 + COUNT))
    assert not agreement.wrong
    assert agreement.counts["compiled"] > COUNT // 2, agreement.refused


def test_bits_of_all_types_are_compared():
    nan = torch.tensor([1.0, float("nan")])
    assert same_bits(nan, nan.clone())
    assert not same_bits(nan, nan.nan_to_num())
    assert not same_bits(nan[:1], nan[:1].double())
    assert not same_bits(torch.tensor([1, 2]), torch.tensor([1, 3]))
    assert not same_bits(torch.zeros(2), torch.zeros(2, 1))

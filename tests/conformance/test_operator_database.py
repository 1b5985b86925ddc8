"""Every operator of torch's own database, forward and backward, on ``reference`` and as code."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch

from abele import passes
from abele.targets.reference import Interpreter
from helpers import emitted_programs, operator_database
from helpers.emitted_operators import program_of
from helpers.emitted_programs import Case

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

# Operators in one file: starting the compiler takes as long as compiling one of them.
TOGETHER = 60
# Named in docs/sharp_edges.md: the number of results depends on values, or last bits differ.
REFUSED = {"index_fill", "masked_select", "repeat_interleave", "tensor_split"}
OTHER_BITS = {"prod", "masked_fill", "cov", "cholesky_solve"}


@functools.cache
def programs():
    """Operators with their programs, and the names of those that cannot be traced."""
    traced, refused = [], set()
    for case in operator_database.alone():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                traced.append((case, program_of(case, case.inputs, gradients=True)))
        except Exception:  # noqa: BLE001 - torch raises what it likes
            refused.add(case.name)
    return traced, refused


def test_every_operator_is_traced_or_refused_by_name():
    traced, refused = programs()
    assert refused <= REFUSED
    assert len(traced) > 400


def test_every_operator_has_the_bits_of_plain_pytorch():
    wrong = set()
    for case, program in programs()[0]:
        torch.manual_seed(42)  # what samples of operators that draw numbers begin with
        expected = case.eagerly()
        torch.manual_seed(42)
        actual = Interpreter().compile(passes.run(program)).run(case.inputs)
        same = len(expected) == len(actual) and all(map(torch.equal, expected, actual))
        wrong |= set() if same else {case.name}
    assert wrong <= OTHER_BITS


@pytest.mark.compiler
def test_every_operator_as_code_computes_what_is_interpreted():
    traced, _ = programs()
    wrong = {}
    for first in range(0, len(traced), TOGETHER):
        few = traced[first : first + TOGETHER]
        cases = [Case(a.name, program, a.inputs, magnifies=True) for a, program in few]
        for outcome in emitted_programs.outcomes(cases):
            difference = None if outcome.declined else outcome.difference()
            wrong |= {outcome.name: difference} if difference else {}
    assert not wrong

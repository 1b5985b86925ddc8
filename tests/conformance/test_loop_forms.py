"""Emitted loops compute what is interpreted, for rows of all lengths and with the flags in use."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from abele.targets.cpu.emitted import build
from conftest import usable
from helpers.emitted_programs import distance, outcomes
from helpers.loop_forms import cases
from helpers.runs import assert_close_by_norm, rule_for, run, run_eagerly, started

pytestmark = pytest.mark.compiler

_SAMPLE = (3, 6, 11)  # lengths that g++ 11.3 and 12.2 got wrong
_LENGTHS = (*range(1, 18), 23, 24, 31, 32, 33, 47, 63, 64, 65, 70)
_FLAGS = {
    "short": build.FLAGS,
    "long": (*build.FLAGS, *build._QUICK_FLAGS),
    "avx2": (*build.FLAGS, "-march=x86-64-v3"),
}


def differences(chosen, flags):
    """What is wrong of these cases.

    Inputs are rounded as they are. Rounded otherwise, values that equal the bounds of selections
    would be on either side, which would allow for any result.
    """
    results = outcomes(chosen, flags=flags)
    assert results
    return [
        f"{each.name}: {name} is {off:.3g} off"
        for each in results
        for name, expected, actual in zip(each.names, each.expected, each.actual, strict=True)
        for off, limit in [distance(expected, actual)]
        if off > limit + each.rounding()
    ]


def test_loops_of_short_rows_compute_what_is_interpreted():
    chosen = [case for length in _SAMPLE for case in cases(length, every=7)]
    assert not differences(chosen, _FLAGS["short"])


class Normed(nn.Module):
    """A classifier with a batch norm of short rows."""

    def __init__(self, width):
        super().__init__()
        layers = (nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))
        self.layers = nn.Sequential(*layers)

    def forward(self, x, labels):
        return F.cross_entropy(self.layers(x), labels)


@pytest.mark.parametrize("width", [3, 6])
def test_a_batch_norm_of_short_rows_trains_as_plain_pytorch(width):
    module = Normed(width)
    plain, batches = copy.deepcopy(module), [(torch.randn(8, 6), torch.randint(0, 3, (8,)))]
    session, _ = started(module, batches[0], rule_for(module, lr=0.5), target=usable("cpu"))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    assert_close_by_norm(run(session, batches), run_eagerly(plain, optimizer, batches), 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("flags", _FLAGS)
@pytest.mark.parametrize("length", _LENGTHS)
def test_all_forms_of_loops_compute_what_is_interpreted(length, flags):
    assert not differences(list(cases(length)), _FLAGS[flags])

"""Which programs get code of their own."""

import torch
from torch import nn

from abele import passes
from abele.targets.cpu.emitted.lowering import Emitted
from helpers.emitted_programs import traced

F = nn.functional


def reason(function, *inputs):
    return Emitted().why(passes.run(traced("case", function, inputs).program))


def test_everything_may_become_code():
    assert reason(lambda x: F.relu(x @ x).mean(), torch.ones(4, 4)) == (
        "C++ of its own runs it, compiled in seconds"
    )


def test_any_number_of_operators_may_be_torchs_if_one_is_not():
    def torchs(x):
        for _ in range(9):
            x = torch.special.i0(x)
        return x

    assert reason(torchs, torch.ones(3)) is None
    assert reason(lambda x: torchs(x) + 1, torch.ones(3)) is not None
    assert reason(lambda x: torch.sort(x.T).values.T, torch.ones(3, 3)) is None


def test_effects_and_branches_are_another_lowerings():
    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    assert reason(branch, torch.ones(3)) is None

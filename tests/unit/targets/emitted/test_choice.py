"""Which programs get code of their own, and what the reason says of the rest."""

import torch
from torch import nn

from abele import passes
from abele.targets.cpu.emitted import choice
from helpers.emitted_programs import traced

F = nn.functional


def reason(function, *inputs):
    return choice.why(passes.run(traced("case", function, inputs).program))


def test_everything_may_become_code():
    assert reason(lambda x: F.relu(x @ x).mean(), torch.ones(4, 4)) == (
        "C++ of its own runs it, compiled in seconds"
    )


def test_convolutions_of_our_kernels_are_not_called_as_torch_has_them():
    images, weight = torch.ones(8, 3, 9, 9), torch.ones(5, 3, 3, 3)
    assert "as torch has them" not in reason(F.conv2d, images, weight)


def test_the_reason_counts_what_torch_computes():
    images, weight = torch.ones(8, 32, 9, 9), torch.ones(32, 32, 3, 3)
    said = reason(lambda x, w: F.conv2d(x, w).relu(), images, weight)
    assert said.endswith("; 1 of 2 operators are called as torch has them")


def test_any_number_of_operators_may_be_torchs_if_one_is_not():
    def torchs(x):
        for _ in range(9):
            x = torch.special.i0(x)
        return x

    assert reason(torchs, torch.ones(3)) is None
    assert reason(lambda x: torchs(x) + 1, torch.ones(3)).endswith(
        "; 9 of 10 operators are called as torch has them"
    )
    assert reason(lambda x: torch.sort(x.T).values.T, torch.ones(3, 3)) is None


def test_effects_and_branches_are_another_lowerings():
    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    assert reason(branch, torch.ones(3)) is None

"""Sums of which only slices are read, emitted and interpreted."""

import pytest
import torch
from torch import nn

from abele import StepConfig, passes
from abele.targets.cpu.emitted import lowering
from abele.targets.reference import Interpreter
from helpers.emitted_library import together
from helpers.runs import captured

pytestmark = pytest.mark.compiler


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def gates(x, vector):
    a, b, c = (x * 0.5 + vector).chunk(3, dim=1)
    return torch.sigmoid(a) * torch.tanh(b) + c


def rows(x, vector):
    first, second = (x.exp() - vector).split(4)
    return first * second


def along_columns(x, vector):
    y = x + vector.view(1, -1)
    return y[:, ::3] * y[:, 1::3] - y[:, 2::3]


def of_a_column(x, vector):
    a, b = (x[:, :1] + x).tensor_split([7], dim=1)
    return a.sin(), b.cos() + vector[0]


def one_of_three(x, vector):
    y = (x + vector).view(8, 3, 7)
    return y[:, 0] * y[:, 1]


CASES = (gates, rows, along_columns, of_a_column, one_of_three)


@pytest.fixture(scope="module")
def both():
    patch = pytest.MonkeyPatch()
    patch.setenv("ABELE_TARGET", "reference")
    programs = []
    for function in CASES:
        inputs = [torch.rand(8, 21), torch.rand(21)]
        (program,) = captured(Function(function), inputs, StepConfig(training=False)).programs
        programs.append(passes.run_only(passes.run(program), lowering.Emitted.passes))
    patch.undo()
    plans = [lowering.planned_code(each) for each in programs]
    runs = together(programs, plans)
    return dict(zip(CASES, zip(programs, runs, strict=True), strict=True))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=lambda each: each.__name__)
def test_slices_have_the_values_of_the_whole(both, case, count, threads):
    program, run = both[case]
    inputs = [torch.rand(slot.shape) for slot in program.inputs]
    expected = Interpreter().compile(program).run(list(inputs))
    threads(count)
    torch.testing.assert_close(run(list(inputs)), expected, rtol=1e-6, atol=1e-6)


def test_the_gates_are_one_loop(both):
    assert len(lowering.placed(both[gates][0]).units) == 1

"""Derivatives of GELU are computed beside its result: the same bits, and nothing more is kept."""

import pytest
import torch
from torch import nn

from abele.passes.of_lowerings.gradients import kept_derivatives
from abele.targets.reference import Interpreter, Reference
from helpers.runs import assert_same_bits, captured, rule_for, run, started

aten = torch.ops.aten


class Lowered(Interpreter):
    passes = (kept_derivatives,)


class Here(Reference):
    lowerings = (Lowered(),)


class Perceptron(nn.Module):
    """Two layers; ``again`` is added to what the second reads."""

    def __init__(self, approximate="none", again=None):
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)
        self.approximate, self.again = approximate, again

    def forward(self, x, wanted):
        inner = self.first(x)
        hidden = nn.functional.gelu(inner, approximate=self.approximate)
        if self.again is not None:
            hidden = hidden + self.again(inner)
        return nn.functional.mse_loss(self.second(hidden), wanted)


def batch(seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(4, n, generator=generator).to(dtype) for n in (6, 3))


def targets_of(program):
    return [node.target for node in program.graph.graph.nodes if node.op == "call_function"]


def step_of(model, rows):
    (program,) = captured(model, rows, rule=rule_for(model)).programs
    return program


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_the_derivative_is_computed_beside_the_result(approximate):
    program = kept_derivatives(step_of(Perceptron(approximate), batch())).verify()
    targets = targets_of(program)
    assert targets.count(aten.gelu_backward.default) == 1
    forward = targets.index(aten.gelu.default)
    assert aten.gelu_backward.default in targets[forward : forward + 3]
    (node,) = program.graph.graph.find_nodes(op="call_function", target=aten.gelu_backward.default)
    assert node.kwargs == ({} if approximate == "none" else {"approximate": approximate})
    assert {user.target for user in node.users} == {aten.mul.Tensor}


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_are_the_same(approximate, dtype):
    torch.manual_seed(3)
    model = Perceptron(approximate).to(dtype)
    batches = [batch(seed, dtype) for seed in range(3)]
    results = [
        run(started(model, batches[0], rule_for(model), target=target)[0], batches)
        for target in (Reference(), Here())
    ]
    assert_same_bits(*results)


@pytest.mark.parametrize(
    ("again", "dtype"),
    [(torch.tanh, torch.float32), (nn.functional.gelu, torch.float32), (None, torch.bfloat16)],
    ids=["its argument is read again", "two read it", "half would be rounded"],
)
def test_other_programs_stay_as_they_are(again, dtype):
    program = step_of(Perceptron(again=again).to(dtype), batch(dtype=dtype))
    assert targets_of(kept_derivatives(program)) == targets_of(program)

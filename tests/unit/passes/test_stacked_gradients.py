"""Gradients of all slices of a tensor become a stack."""

import pytest
import torch
from torch import nn

from abele import passes
from abele.passes.cleanup import stacked_gradients
from abele.targets.reference import Interpreter, Reference
from helpers.runs import assert_close_by_norm, captured, rule_for, run, started

aten = torch.ops.aten


class Lowered(Interpreter):
    passes = (stacked_gradients,)


class Here(Reference):
    lowerings = (Lowered(),)


class Sliced(nn.Module):
    """Slices of one tensor, each used in its own way; some not at all, or twice."""

    def __init__(self, used):
        super().__init__()
        self.inner, self.used = nn.Linear(3, 12), used

    def forward(self, x, wanted):
        joint = self.inner(x).view(-1, 3, 4)
        slices = [joint[:, index].sin() * (index + 1) for index in self.used]
        return nn.functional.mse_loss(torch.stack(slices).sum(0), wanted)


def batch():
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(5, n, generator=generator) for n in (3, 4))


def count(program, target):
    return sum(node.target is target for node in program.graph.graph.nodes)


@pytest.mark.parametrize("used", [(0, 1, 2), (2, 0, -2), (0, 1), (0, 1, 2, 1), (1,)], ids=str)
def test_it_trains_alike(used):
    model = Sliced(used)
    data = [batch() for _ in range(3)]
    rule = rule_for(model, "sgd")
    plain = run(started(model, data[0], rule)[0], data)
    ours = run(started(model, data[0], rule, target=Here())[0], data)
    assert_close_by_norm(ours, plain, 1e-6)


@pytest.mark.parametrize(
    ("used", "stacks"), [((0, 1, 2), 1), ((0, 1), 0), ((0, 1, 2, -2), 0)], ids=str
)
def test_only_a_whole_tensor_is_stacked(used, stacks):
    model = Sliced(used)
    (program,) = captured(model, batch(), rule=rule_for(model, "sgd")).programs
    before = passes.run(program)
    after = stacked_gradients(before).verify()
    assert count(before, aten.select_backward.default) == len(used)
    assert count(after, aten.stack.default) == count(before, aten.stack.default) + stacks
    assert count(after, aten.select_backward.default) == (0 if stacks else len(used))

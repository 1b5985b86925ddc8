"""Gradients of recurrent layers: sums over time steps become one product and one column sum."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from abele import passes
from abele.passes.of_lowerings.merged_gemms import summed_products
from abele.passes.of_lowerings.recurrent import recurrent_steps
from abele.targets.reference import Interpreter, Reference
from helpers.runs import assert_close_by_norm, captured, rule_for, run, started

aten = torch.ops.aten
STEPS = 5


class Lowered(Interpreter):
    passes = (recurrent_steps, summed_products)


class Here(Reference):
    lowerings = (Lowered(),)


class Recurrent(nn.Module):
    def __init__(self, kind, **settings):
        super().__init__()
        self.inner = kind(3, 4, batch_first=True, **settings)

    def forward(self, sequences, wanted):
        return nn.functional.mse_loss(self.inner(sequences)[0], wanted)


def batches(count, width=4):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, STEPS, 3), (2, STEPS, width)
    return [tuple(torch.randn(s, generator=generator) for s in shapes) for _ in range(count)]


SETTINGS = ({}, {"bidirectional": True}, {"num_layers": 2})
TWICE = {(nn.GRU, 0), (nn.GRU, 2), (nn.RNN, 0), (nn.RNN, 1)}  # an LSTM has each of these
LAYERS = [
    pytest.param(kind, values, marks=[pytest.mark.long] if (kind, number) in TWICE else [])
    for kind in (nn.LSTM, nn.GRU, nn.RNN)
    for number, values in enumerate(SETTINGS)
]


@pytest.mark.parametrize(("kind", "settings"), LAYERS)
def test_a_recurrent_layer_trains_alike(kind, settings):
    model = Recurrent(kind, **settings)
    data = batches(3, 8 if settings.get("bidirectional") else 4)
    rule = rule_for(model, "sgd")
    plain = run(started(model, data[0], rule)[0], data)
    ours = run(started(model, data[0], rule, target=Here())[0], data)
    assert_close_by_norm(ours, plain, 1e-5)


def test_all_steps_lie_in_one_place():
    model = Recurrent(nn.LSTM)
    (program,) = captured(model, batches(1)[0], rule=rule_for(model, "sgd")).programs
    before = passes.run(program, (recurrent_steps,))
    after = summed_products(before).verify()
    sums, stacks = (
        [
            [node for node in each.graph.graph.nodes if node.target is target]
            for each in (before, after)
        ]
        for target in (aten.sum.dim_IntList, aten.stack.default)
    )
    # Before: of each step, and of the stack that the gradient of the inputs' weights reads.
    assert [len(each) for each in sums] == [STEPS + 1, 1]
    assert [len(each) for each in stacks] == [2, 1]

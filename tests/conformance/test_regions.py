"""Recurrent layers: one loop over all steps, or steps that threads run on rows of their own."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from abele import passes
from abele.targets.cpu.emitted import lowering, regions
from abele.targets.reference import Interpreter
from helpers.emitted_library import together, trained
from helpers.runs import captured, rule_for

pytestmark = pytest.mark.compiler

STEPS, LONG = 5, 9


class Sequences(nn.Module):
    """A recurrent layer of odd sizes, and a layer on its last state."""

    def __init__(self, kind, **settings):
        super().__init__()
        self.layer = kind(33, 37, **settings)
        width = 37 * (1 + settings.get("bidirectional", False))
        self.first, self.head = settings.get("batch_first", False), nn.Linear(width, 19)

    def forward(self, x):
        states, _ = self.layer(x)
        last = states[:, -1] if self.first else states[-1]
        return F.mse_loss(self.head(last), torch.ones(len(last), 19))


class Cells(nn.Module):
    """A cell that the user calls step by step, with something between the steps."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(33, 37)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[1], 37)
        for step in x:
            h, c = self.cell(step, (h * 0.5, c))
        return F.mse_loss(h, torch.ones_like(h))


# Each: the module, its batch, and how many regions it has at least. Loops have none: of LSTMs, and
# of other layers from eight steps on.
CASES = {
    "lstm": (lambda: Sequences(nn.LSTM), (STEPS, 43, 33), 0),
    "lstm, batch first": (lambda: Sequences(nn.LSTM, batch_first=True), (43, STEPS, 33), 0),
    "lstm, few rows": (lambda: Sequences(nn.LSTM), (STEPS, 2, 33), 0),
    "lstm, two layers": (lambda: Sequences(nn.LSTM, num_layers=2), (STEPS, 40, 33), 0),
    "lstm, both directions": (
        *(lambda: Sequences(nn.LSTM, bidirectional=True, bias=False), (STEPS, 33, 33)),
        0,
    ),
    "loop of a gru": (lambda: Sequences(nn.GRU), (LONG, 43, 33), 0),
    "loop, few rows": (lambda: Sequences(nn.GRU, batch_first=True), (3, LONG, 33), 0),
    "loops, two layers in both directions": (
        *(lambda: Sequences(nn.GRU, num_layers=2, bidirectional=True), (LONG, 21, 33)),
        0,
    ),
    "loop of an rnn": (lambda: Sequences(nn.RNN, bias=False), (LONG, 43, 33), 0),
    "loops of relu": (
        *(lambda: Sequences(nn.RNN, nonlinearity="relu", bidirectional=True), (LONG, 9, 33)),
        0,
    ),
    "gru": (lambda: Sequences(nn.GRU), (STEPS, 43, 33), 2),
    "batch first": (lambda: Sequences(nn.GRU, batch_first=True), (43, STEPS, 33), 2),
    "few rows": (lambda: Sequences(nn.GRU), (STEPS, 8, 33), 2),
    "rnn": (lambda: Sequences(nn.RNN), (STEPS, 43, 33), 2),
    "two layers": (lambda: Sequences(nn.GRU, num_layers=2), (STEPS, 40, 33), 3),
    "both directions": (lambda: Sequences(nn.GRU, bidirectional=True), (STEPS, 33, 33), 2),
    "cells": (Cells, (STEPS, 43, 33), 1),
}


@pytest.fixture(scope="module")
def both():
    """The program of each case, planned with and without regions, in one library."""
    patch = pytest.MonkeyPatch()
    patch.setenv("ABELE_TARGET", "reference")
    programs, plans = [], []
    for make, shape, _ in CASES.values():
        torch.manual_seed(0)
        module = make()
        (traced,) = captured(module, [torch.randn(*shape)], rule=rule_for(module, "adam")).programs
        program = passes.run_only(passes.run(traced), lowering.Emitted.passes)
        for least in (3, 1 << 60):
            patch.setattr(regions, "_LEAST_PRODUCTS", least)
            programs.append(program)
            plans.append(lowering.planned_code(program))
    patch.undo()
    runs = together(programs, plans)
    names = [(name, regions) for name in CASES for regions in (True, False)]
    return {name: pair for name, *pair in zip(names, programs, runs, strict=True)}


@pytest.mark.parametrize("name", CASES)
def test_one_thread_has_the_bits_of_a_program_without_regions(both, name, threads):
    threads(1)
    ours, wanted = (trained(*both[name, regions], 0.25) for regions in (True, False))
    torch.testing.assert_close(ours, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_that_are_interpreted(both, name, count, threads):
    program, run = both[name, True]
    expected = trained(program, Interpreter().compile(program).run, 0.25)
    threads(count)
    torch.testing.assert_close(trained(program, run, 0.25), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_layers_have_regions(both, name):
    units, least = lowering.placed(both[name, True][0]).units, CASES[name][2]
    count = sum(isinstance(unit, regions.Region) for unit in units)
    assert count >= least if least else count == 0

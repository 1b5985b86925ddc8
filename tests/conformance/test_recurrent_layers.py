"""Recurrent layers, as one kernel over all steps or as unrolled steps."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from abele import passes
from abele.targets.cpu.emitted import lowering
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


CASES = {
    "lstm": (lambda: Sequences(nn.LSTM), (STEPS, 43, 33)),
    "lstm, batch first": (lambda: Sequences(nn.LSTM, batch_first=True), (43, STEPS, 33)),
    "lstm, few rows": (lambda: Sequences(nn.LSTM), (STEPS, 2, 33)),
    "lstm, two layers": (lambda: Sequences(nn.LSTM, num_layers=2), (STEPS, 40, 33)),
    "lstm, both directions": (
        lambda: Sequences(nn.LSTM, bidirectional=True, bias=False),
        (STEPS, 33, 33),
    ),
    "loop, few rows": (lambda: Sequences(nn.GRU, batch_first=True), (3, LONG, 33)),
    "loops, two layers in both directions": (
        lambda: Sequences(nn.GRU, num_layers=2, bidirectional=True),
        (LONG, 21, 33),
    ),
    "loop of an rnn": (lambda: Sequences(nn.RNN, bias=False), (LONG, 43, 33)),
    "loops of relu": (
        lambda: Sequences(nn.RNN, nonlinearity="relu", bidirectional=True),
        (LONG, 9, 33),
    ),
    "steps of a gru": (lambda: Sequences(nn.GRU, num_layers=2), (STEPS, 40, 33)),
    "steps of an rnn": (lambda: Sequences(nn.RNN, bidirectional=True), (STEPS, 33, 33)),
    "cells": (Cells, (STEPS, 43, 33)),
}


@pytest.fixture(scope="module")
def compiled():
    """Each case as its program and its code, all in one library."""
    programs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABELE_TARGET", "reference")
        for make, shape in CASES.values():
            torch.manual_seed(0)
            module, batch = make(), [torch.randn(*shape)]
            (traced,) = captured(module, batch, rule=rule_for(module, "adam")).programs
            programs.append(passes.run_only(passes.run(traced), lowering.Emitted.passes))
        plans = [lowering.planned_code(program) for program in programs]
    return dict(zip(CASES, zip(programs, together(programs, plans), strict=True), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_that_are_interpreted(compiled, name, threads):
    program, run = compiled[name]
    expected = trained(program, Interpreter().compile(program).run, 0.25)
    for count in (1, 2, 3):
        threads(count)
        torch.testing.assert_close(trained(program, run, 0.25), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("loop")])
def test_bits_do_not_depend_on_the_number_of_threads(compiled, name, threads):
    program, run = compiled[name]
    results = []
    for count in (1, 2, 3, 5, 16):
        threads(count)
        results.append(trained(program, run, 0.25))
    for each in results[1:]:
        assert all(map(torch.equal, each, results[0]))

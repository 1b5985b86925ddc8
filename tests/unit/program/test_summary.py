"""Numbers about a program agree with counting by hand."""

import torch

from abele.program import memory
from abele.step.config import StepConfig
from helpers.models import Affine, Dense
from helpers.runs import captured, rule_for


def programs(**config):
    model = Dense()
    batch = [torch.randn(2, 6), torch.randn(2, 3)]
    return captured(model, batch, StepConfig(**config), rule_for(model)).programs


def test_state_is_counted_once_however_many_programs_use_it():
    bytes_of_weights = 4 * (6 * 8 + 8 + 8 * 3 + 3)
    gradients = memory.state_bytes(programs(gradient_accumulation=2))
    assert gradients["parameter"] == gradients["optimizer_state"] == gradients["accumulator"]
    assert gradients["parameter"] == bytes_of_weights
    assert gradients["buffer"] == gradients["hyper"] == 0


def test_the_peak_of_a_chain_is_two_values():
    (forward,) = captured(Affine(), [torch.randn(5, 3)]).programs
    assert max(memory.of_graph(forward).alive()) == 2 * 5 * 3 * 4


def test_a_view_keeps_what_it_shows_alive():
    class Chain(torch.nn.Module):
        def forward(self, x):
            seen = torch.sin(x).view(-1)
            return seen.sum(), torch.cos(x), seen.prod()

    (forward,) = captured(Chain(), [torch.randn(10, 10)]).programs
    # sin is read by prod at last: it lives beside cos, and so do the two sums.
    assert max(memory.of_graph(forward).alive()) == 400 + 4 + 400 + 4

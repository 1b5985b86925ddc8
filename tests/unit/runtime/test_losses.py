"""The sample of losses: few, evenly spread, and copies."""

import itertools

import torch

from abele.runtime.session import Losses


def sample(calls):
    losses = Losses()
    kept, due = 0, 1
    for call in range(1, calls + 1):
        if call == due:
            due = losses.keep(call, torch.tensor([call - 1.0, call + 1.0]))
            kept += 1
    return losses.values(), kept


def test_all_are_kept_until_there_are_many_and_then_few_of_all_calls():
    few, _ = sample(100)
    assert few == [(call, float(call)) for call in range(1, 101)]
    many, kept = sample(20_000)
    assert 64 <= len(many) < 128
    assert kept < 700  # what the other calls cost is one comparison
    assert all(call == value for call, value in many)
    steps = {after - before for (before, _), (after, _) in itertools.pairwise(many)}
    assert len(steps) == 1
    assert many[0][0] == 1
    assert many[-1][0] > 19_600


def test_a_loss_that_is_changed_in_place_later_is_kept_as_it_was():
    losses, loss = Losses(), torch.tensor(2.0)
    losses.keep(1, loss)
    loss += 1
    assert losses.values() == [(1, 2.0)]

"""Additions of products keep their factor: torch 2.13's compiler would lose it."""

import pytest
import torch

from abele.compile.verdict import TOLERANCE
from helpers.models import MODELS
from helpers.runs import assert_close_by_norm, captured, flat, rule_for, run, started

DENSE = MODELS["dense"]


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        product = x @ self.weight
        return torch.add(x, product, alpha=0.25), torch.add(product, x, alpha=-3.0)


def test_a_product_that_is_added_keeps_its_factor(target):
    module, x = Scaled(), torch.randn(4, 4)
    session, _ = started(module, [x], target=target)
    output = [value.cpu() for value in session.step([x.to(session.device)])]
    with torch.no_grad():
        torch.testing.assert_close(output, flat(module(x)), rtol=1e-5, atol=1e-5)
    assert len(captured(module, [x]).programs) == 1


@pytest.mark.thorough  # compiled; test_ladder trains with a constant rate and momentum
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_constant_learning_rate_counts(target, momentum):
    module, again = DENSE.fresh(), DENSE.fresh()
    sessions = [
        started(
            model, DENSE.batch(), rule_for(model, "sgd", lr=0.05, momentum=momentum), target=name
        )
        for model, name in ((module, target), (again, "reference"))
    ]
    batches, expected = (run(session, DENSE.batches(3)) for session, _ in sessions)
    assert_close_by_norm(batches, expected, TOLERANCE)
